"""A query view that joins events of two categories, whose topics have different numbers of partitions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
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
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange, raw
from leftfold.ports.codec import MessageCodec, read_recorded
from leftfold.ports.flush import Phase, covered
from leftfold.redis import RedisViewStore
from leftfold.spark.queries.compute import checked, refreshed
from leftfold.spark.sql.incremental import classify
from tests.domains.ledger import Move
from tests.domains.ledger import app as ledgers_app
from tests.servers import secret_url
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.kin import Settle, app, joined, lone, people, region_sums
from tests.spark.query_streams import Streaming, places, refreshing
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TOPICS = {names.events("ledgers"): ledgers_app.partitions, names.events("people"): app.partitions}
START_SECONDS = 240.0


class Kin:
    """Both Apps at work, and clients of both."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._people = KafkaClient(app.name, shop.kafka)
        self._ledgers = KafkaClient(ledgers_app.name, shop.kafka)

    def settle(self, person: str, region: str) -> Position:
        receipt: Position = self._people.send(Settle(person=person, region=region), timeout=WAIT_SECONDS).position
        self.shop.wait_stable(receipt)
        return receipt

    def move(self, owner: str, amount: str) -> Position:
        command = Move(ledger=f"l-{owner}", owner=owner, amount=Decimal(amount))
        receipt: Position = self._ledgers.send(command, timeout=WAIT_SECONDS).position
        self.shop.wait_stable(receipt)
        return receipt

    def ends(self) -> Position:
        with closing(KafkaBulkLog(self.shop.kafka)) as log:
            return log.stable_ends(TOPICS)

    def events(self) -> Iterator[Any]:
        """Every committed event of both categories."""
        codec = MessageCodec[Any]([*region_sums.events])
        with closing(KafkaBulkLog(self.shop.kafka)) as log:
            for topic, ends in self.ends().offsets.items():
                for partition, end in ends.items():
                    part = OffsetRange(topic, partition, 0, end)
                    for records in log.read(part):
                        found = (read_recorded(codec, raw(part, record)) for record in records)
                        yield from (recorded.event for recorded in found if recorded is not None)

    def refresh(self, view: Any = region_sums, **options: Any) -> Any:
        return refreshing(self.shop.spark, self.shop.kafka, self.shop.redis, self.shop.store, view, **options)

    def forget(self) -> None:
        """Leaves nothing of the views."""
        for view in app.views:
            for generation in self.shop.store.registry(view.name).generations.values():
                self.shop.store.unlink(generation)
            self.shop.store._client.execute_command("DEL", f"view:{view.name}")

    def close(self) -> None:
        self._people.close()
        self._ledgers.close()


@pytest.fixture(scope="module")
def at_work(shop: Shop) -> Iterator[Kin]:
    """The people's worker beside that of the ledgers, and some who have settled."""
    ensure(app, shop.kafka)
    stop = threading.Event()
    worker = threading.Thread(target=Worker(app, people.name, KafkaClientSupplier(shop.kafka), stop=stop).run)
    worker.start()
    try:
        with closing(Kin(shop)) as kin:
            for number in range(7):
                kin.settle(f"o/{number}", "north" if number % 2 else "south")
            kin.settle("o/0", "west")
            yield kin
    finally:
        stop.set()
        worker.join()


@pytest.fixture
def kin(at_work: Kin) -> Iterator[Kin]:
    """Both Apps, without a row of the views."""
    yield at_work
    at_work.forget()


def test_rows_of_a_join_of_two_categories_equal_those_of_plain_python(kin: Kin) -> None:
    result = kin.refresh().run()
    expected = joined(kin.events())
    assert dict(kin.shop.views[region_sums].items()) == expected
    assert expected.keys() == {"north", "south", "west"}
    assert (result.agreement, result.rows) == (Agreement.ALONE, 3)


def test_its_position_is_that_of_every_partition_of_both_topics(kin: Kin) -> None:
    kin.refresh().run()
    told = kin.shop.views[region_sums].describe().position
    assert {topic: set(offsets) for topic, offsets in told.offsets.items()} == {
        topic: set(range(count)) for topic, count in TOPICS.items()
    }
    assert told.covers(kin.ends())


def test_a_reader_waits_for_an_event_of_either_category(kin: Kin) -> None:
    kin.refresh().run()
    reader = kin.shop.views[region_sums]
    settled, moved = kin.settle("easterner", "east"), kin.move("easterner", "7.00")
    assert settled.offsets.keys() | moved.offsets.keys() == TOPICS.keys()
    for after in (settled, moved):
        with pytest.raises(StaleViewError):
            reader.get("east", after=after, timeout=0.2)
    late = threading.Timer(0.5, lambda: kin.refresh().run())
    late.start()
    row = reader.get("east", after=settled | moved, timeout=WAIT_SECONDS)
    late.join()
    assert row is not None
    assert (row.moves, row.total) == (1, Decimal("7.00"))


def test_a_second_refresh_is_needed_when_either_topic_has_grown(kin: Kin) -> None:
    kin.refresh().run()
    again = kin.refresh()
    assert again.stands_at(again.plan())
    for grow in (partial(kin.settle, "grown", "east"), partial(kin.move, "o/1", "1.00")):
        grow()
        assert not again.stands_at(again.plan())
        assert kin.refresh().run().swapped
        assert again.stands_at(again.plan())


def test_no_stream_follows_a_view_whose_events_are_of_two_categories(kin: Kin) -> None:
    told = {view.name: refreshed(kin.shop.spark, view) for view in (region_sums, lone)}
    assert str(told["region_sums"]) == "batch and swap: it reads 2 tables of events, and a stream follows one"
    assert str(told["lone"]) == (
        "batch and swap: its events are of ledgers and people, and a stream follows one table of events"
    )
    assert kin.refresh(lone).run().swapped


def test_the_twin_that_streams_one_of_two_topics_is_never_shown(
    kin: Kin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints never reach the other topic's end, so that readers would wait for ever."""
    allowed = classify(checked(kin.shop.spark, lone), lone.tables, ["owner", "amount"])
    assert allowed.incremental
    monkeypatch.setattr("leftfold.spark.queries.query_stream.refreshed", lambda spark, view: allowed)
    shop, ends = kin.shop, kin.ends()
    store = RedisViewStore(shop.redis)
    with Streaming(shop.spark, lone, places(shop.kafka, shop.redis, store, tmp_path)) as stream:

        def streamed() -> bool:
            sealed = [g for g in shop.store.registry(lone.name).generations.values() if g.phase is Phase.SEALED]
            at = [covered(g, shop.store.checkpoints(g)) for g in sealed]
            return any(position.covers(ends.only([names.events("ledgers")])) for position in at)

        wait_until(streamed, lambda: f"the stream to read the ledgers: {stream.told} {stream.error}", WAIT_SECONDS)
        moved = kin.move("o/2", "1.00")
        ends = moved
        wait_until(streamed, lambda: f"the stream to go on: {stream.told} {stream.error}", WAIT_SECONDS)
        assert not stream.heard("generation live")
    assert shop.store.registry(lone.name).live_of(lone.hash) is None


def command(shop: Shop, *words: str, redis: bool = True) -> list[str]:
    places = ["--kafka", shop.kafka.bootstrap_servers, *(["--redis", secret_url(shop.redis)] if redis else [])]
    return [sys.executable, "-m", "leftfold.cli", *words, "--app=tests.spark.kin:app", *places]


@pytest.mark.faults
def test_the_shell_builds_it_and_says_how_it_is_kept(kin: Kin) -> None:
    done = subprocess.run(
        command(kin.shop, "rebuild", "region_sums", "--json", "--keep", "0"),
        capture_output=True, text=True, timeout=240.0, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (told,) = map(json.loads, done.stdout.splitlines())
    assert (told["rows"], told["swapped"]) == (len(joined(kin.events())), True)
    assert dict(kin.shop.views[region_sums].items()) == joined(kin.events())
    done = subprocess.run(
        command(kin.shop, "check", redis=False), capture_output=True, text=True, timeout=240.0, check=False
    )
    assert "view region_sums is kept by batch and swap: it reads 2 tables of events" in done.stderr, done.stdout
    assert "view lone is kept by batch and swap: its events are of ledgers and people" in done.stderr


@pytest.mark.faults
def test_run_keeps_it_at_the_end_of_both_logs(kin: Kin, tmp_path: Path) -> None:
    with running(kin.shop, tmp_path / "log", "run", "region_sums", "--every", "1s", "--json-logs") as alive:
        wait_until(
            lambda: alive() and kin.shop.store.registry(region_sums.name).live_of(region_sums.hash) is not None,
            lambda: f"region_sums to be computed: {(tmp_path / 'log').read_text()}",
            START_SECONDS,
        )
        reader = kin.shop.views[region_sums]
        after = kin.settle("islander", "islands") | kin.move("islander", "3.50")
        row = reader.get("islands", after=after, timeout=WAIT_SECONDS)
        assert row is not None
        assert (row.moves, row.total) == (1, Decimal("3.50"))
        assert reader.get("islands", after=kin.settle("islander", "islands"), timeout=WAIT_SECONDS) != row


@contextmanager
def running(shop: Shop, log: Path, *words: str) -> Iterator[Any]:
    """A command at work while the block runs, which is told whether it still is; it must end well."""
    with log.open("wb") as out:
        process = subprocess.Popen(command(shop, *words), stderr=out, env={**os.environ})

    def alive() -> bool:
        assert process.poll() is None, log.read_text()
        return True

    try:
        yield alive
        process.send_signal(signal.SIGTERM)
        assert process.wait(240.0) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
