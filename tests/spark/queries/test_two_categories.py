"""A query view that joins events of two categories, whose topics have different numbers of partitions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leftfold import StaleViewError
from leftfold.engine.rebuild.result import Agreement
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.flush import Phase, covered
from leftfold.spark.queries.compute import checked, refreshed
from leftfold.spark.sql.incremental import classify
from tests.domains.ledger import app as ledgers_app
from tests.spark.conftest import Shop
from tests.spark.oracle import events_of, logged
from tests.spark.queries.kin import Settle, app, joined, lone, people, region_sums
from tests.spark.queries.streams import streaming
from tests.threads import Background, deciding
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.usefixtures("forgotten")]

TOPICS = {names.events("ledgers"): ledgers_app.partitions, names.events("people"): app.partitions}


class Kin:
    """Both Apps at work, and clients of both."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.views, self.store = shop, shop.views, shop.store
        self._people = KafkaClient(app.name, shop.kafka)

    def settle(self, person: str, region: str) -> Position:
        receipt: Position = self._people.send(Settle(person=person, region=region), timeout=WAIT_SECONDS).position
        self.shop.wait_stable(receipt)
        return receipt

    def ends(self) -> Position:
        with closing(KafkaBulkLog(self.shop.kafka)) as log:
            return log.stable_ends(TOPICS)

    def joined(self) -> dict[str, Any]:
        """What the rows of the join must be."""
        settled = events_of(KafkaBulkLog(self.shop.kafka), names.events("people"), people.events)
        return joined([*logged(self.shop), *settled])

    def close(self) -> None:
        self._people.close()


@pytest.fixture(scope="module")
def kin(shop: Shop) -> Iterator[Kin]:
    """The people's worker beside that of the ledgers, and some who have settled."""
    ensure(app, shop.kafka)
    with Background(deciding(app, people.name, KafkaClientSupplier(shop.kafka))), closing(Kin(shop)) as kin:
        for number in range(7):
            kin.settle(f"o/{number}", "north" if number % 2 else "south")
        kin.settle("o/0", "west")
        yield kin


def test_rows_of_a_join_equal_those_of_plain_python_at_a_position_of_both_topics(kin: Kin) -> None:
    result = kin.shop.refresh(region_sums).run()
    expected = kin.joined()
    assert dict(kin.views[region_sums].items()) == expected
    assert expected.keys() == {"north", "south", "west"}
    assert (result.agreement, result.rows) == (Agreement.ALONE, 3)
    reported = kin.views[region_sums].describe().position
    assert {topic: set(offsets) for topic, offsets in reported.offsets.items()} == {
        topic: set(range(count)) for topic, count in TOPICS.items()
    }
    assert reported.covers(kin.ends())


def test_a_refresh_is_needed_when_either_topic_has_grown_and_a_reader_waits_for_it(kin: Kin) -> None:
    kin.shop.refresh(region_sums).run()
    again, reader = kin.shop.refresh(region_sums), kin.views[region_sums]
    assert again.stands_at(again.plan())
    for grow in (partial(kin.settle, "easterner", "east"), partial(kin.shop.move, "easterner", "7.00")):
        after = grow()
        assert not again.stands_at(again.plan())
        with pytest.raises(StaleViewError):
            reader.get("east", after=after, timeout=0.2)
        late = threading.Timer(0.5, lambda: kin.shop.refresh(region_sums).run())
        late.start()
        row = reader.get("east", after=after, timeout=WAIT_SECONDS)
        late.join()
        assert again.stands_at(again.plan())
    assert row == kin.joined()["east"]


def test_no_stream_follows_a_view_whose_events_are_of_two_categories(kin: Kin) -> None:
    reported = {view.name: refreshed(kin.shop.spark, view) for view in (region_sums, lone)}
    assert str(reported["region_sums"]) == "batch and swap: it reads 2 tables of events, and a stream follows one"
    assert str(reported["lone"]) == (
        "batch and swap: its events are of ledgers and people, and a stream follows one table of events"
    )


def test_the_twin_that_streams_one_of_two_topics_is_never_shown(
    kin: Kin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints never reach the other topic's end, so that readers would wait for ever."""
    allowed = classify(checked(kin.shop.spark, lone), lone.tables, ["owner", "amount"])
    assert allowed.incremental
    monkeypatch.setattr("leftfold.spark.queries.query_stream.refreshed", lambda spark, view: allowed)
    store, ends = kin.store, kin.ends()
    with streaming(kin.shop, tmp_path, lone) as stream:

        def streamed() -> bool:
            sealed = [g for g in store.registry(lone.name).generations.values() if g.phase is Phase.SEALED]
            at = [covered(g, store.checkpoints(g)) for g in sealed]
            return any(position.covers(ends.only([names.events("ledgers")])) for position in at)

        wait_until(streamed, lambda: f"the stream to read the ledgers: {stream.reports} {stream.failures}")
        ends = kin.shop.move("o/2", "1.00")
        wait_until(streamed, lambda: f"the stream to go further: {stream.reports} {stream.failures}")
        assert not stream.heard("generation live")
    assert store.registry(lone.name).live_of(lone.hash) is None
