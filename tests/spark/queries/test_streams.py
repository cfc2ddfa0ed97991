"""Incremental query views on real Kafka, Spark and Redis: whatever happens, they come to the batch answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from leftfold import App, ReferenceFile
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.leases import exclusive_lease, members
from leftfold.errors import ConfigurationError, Fenced
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from leftfold.model.computed_views import QueryView
from leftfold.ports.flush import Phase
from leftfold.runtime.operations.survey import Survey
from leftfold.spark.queries.compute import refreshed
from tests.domains.ledger import Move, Moved, app
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.oracle import logged
from tests.spark.queries.streams import agreement, caught_up, streaming, wait_committed
from tests.spark.queries.views import OwnerSums, Region, balances, but_one, hourly, owner_sums, regions, sums_of
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.usefixtures("forgotten")]


def test_a_stream_gives_the_rows_of_the_batch_also_behind_a_restart(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        position = shop.move("streamed", "1.25", "-0.50", "3.00")
        row = shop.views[owner_sums].get("streamed", after=position, timeout=WAIT_SECONDS)
        assert row == OwnerSums("streamed", 3, Decimal("3.75"), Decimal("-0.50"), Decimal("3.00"))
    generation = shop.views[owner_sums].describe().generation
    position = shop.move("streamed", "1.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position)
        assert again.heard("stream continues")
        assert shop.views[owner_sums].find(moves=4)["streamed"].total == Decimal("4.75")
    assert shop.views[owner_sums].describe().generation == generation
    assert agreement(shop) is Agreement.EQUAL


def test_a_stream_gives_way_to_a_younger_one_and_that_to_a_rebuild(shop: Shop, tmp_path: Path) -> None:
    with streaming(shop, tmp_path) as older:
        older.wait_heard("generation live")
        with streaming(shop, tmp_path) as younger:
            assert isinstance(older.wait_ended(), Fenced)
            caught_up(shop, shop.move("two", "1.00"))
            assert younger.heard("stream continues")
            assert agreement(shop) is Agreement.EQUAL
            shop.move("two", "1.00")
            error = younger.wait_ended()
            assert isinstance(error, Fenced)
            assert "is live instead of" in str(error)


def test_a_stream_that_starts_while_its_view_is_rebuilt_leaves_the_checkpoints_as_they_are(
    shop: Shop, tmp_path: Path
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        wait_committed(shop, tmp_path)
    live = shop.store.registry(owner_sums.name).live_of(owner_sums.hash)
    assert live is not None
    before = shop.store.checkpoints(live)
    with exclusive_lease(shop.store, names.rebuilds(owner_sums.name), "a test"), streaming(shop, tmp_path) as again:
        wait_until(lambda: not again.is_alive or again.heard("stream continues"), "the stream to be refused or not")
        assert not again.heard("stream continues")
        error = again.wait_ended()
    assert isinstance(error, Fenced)
    assert str(error).endswith("its stream waits until that has ended")
    assert shop.store.checkpoints(live) == before


def test_a_first_build_is_left_to_its_driver_while_that_is_at_work(shop: Shop, tmp_path: Path) -> None:
    """A generation without the lease of its driver, as of one that was killed, is removed."""
    group, store = names.rebuilds(owner_sums.name), shop.store
    with exclusive_lease(store, group, "a test") as driver:
        topics = {names.events("ledgers"): app.partitions}
        build = open_generation(store, owner_sums, topics, Phase.BULK, attempt=driver)
        with streaming(shop, tmp_path) as second:
            error = second.wait_ended()
        assert isinstance(error, Fenced)
        assert str(error).startswith(f"view owner_sums is being computed already by {driver}; wait for it")
        assert build.id in store.registry(owner_sums.name).generations
    with streaming(shop, tmp_path) as later:
        later.wait_heard("generation live")
        assert not members(store, group)
        registry = store.registry(owner_sums.name)
        assert build.id not in registry.generations
        live = registry.live_of(owner_sums.hash)
        assert live is not None
        assert f"(process {os.getpid()}, " in live.attempt, "it was the lease's, so that nothing removed it"


def test_a_reference_file_that_changed_makes_a_new_generation(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "owners.csv"
    file.write_text("owner,region\no/1,north\n")
    view = regions(file)
    with streaming(shop, tmp_path / "c", view) as stream:
        stream.wait_heard("generation live")
    file.write_text("owner,region\no/1,south\n")
    with streaming(shop, tmp_path / "c", view) as again:
        again.wait_heard("generation live")
        assert again.heard("computed from the start")
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}


def test_a_stream_leaves_rows_without_a_key_out_and_names_them(shop: Shop, tmp_path: Path) -> None:
    hidden, view = "o/3", sums_of("sums", key=but_one)
    with streaming(shop, tmp_path, view) as stream:
        stream.wait_heard("generation live")
        owners = {event.owner for event in logged(shop) if isinstance(event, Moved)}
        assert set(dict(shop.views[view].items())) == owners - {hidden}
        caught_up(shop, shop.move(hidden, "1.00", ledger="l-1"), view)
        assert shop.views[view].get("behind", after=shop.move("behind", "1.00"), timeout=WAIT_SECONDS) is not None
        said = [reported["why"] for reported in stream.reports.of("events passed over")]
        assert "OwnerSums(owner='o/3', " in said[-1]
        assert len(said) == 2, "each row that comes with a new batch is reported"


def test_a_view_that_waits_for_late_events_leaves_later_ones_out_and_says_so(shop: Shop, tmp_path: Path) -> None:
    noon = datetime(2040, 1, 1, 12, tzinfo=UTC)
    with streaming(shop, tmp_path, hourly) as stream, KafkaClient(app.name, shop.kafka) as client:
        stream.wait_heard("generation live")
        # The fifth is ten hours late; Spark tells that by the watermark of the batch before, hence two at nine o'clock.
        for batch in ((-1, 0, 9), (9,), (-1, 10)):
            for hours in batch:
                command = Move(ledger="l-late", owner="late", amount=Decimal(1))
                position = client.send(command, at=noon + timedelta(hours=hours), timeout=WAIT_SECONDS).position
            caught_up(shop, position, hourly)
        reader = shop.views[hourly]
        found = {hours: reader.get(noon + timedelta(hours=hours)) for hours in (-1, 0, 9, 10)}
        assert {hours: row.moves for hours, row in found.items() if row} == {-1: 1, 0: 1, 9: 2, 10: 1}
        assert reader.describe().approximate
        survey = Survey(shop.kafka.bootstrap_servers, secret_url(shop.redis))
        (reported,) = survey.views(App("ledgers", partitions=app.partitions, deciders=app.deciders, views=[hourly]))
        assert reported["approximate"]
    assert agreement(shop, hourly) is Agreement.UNKNOWN, "the batch counts the late event, which is no error"
    row = reader.get(noon - timedelta(hours=1))
    assert row is not None
    assert row.moves == 2


def test_what_no_stream_can_keep_is_refused(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="view balances cannot be kept by a stream: it has WITH"):
        streaming(shop, tmp_path, balances)
    parts: dict[str, Any] = {"events": Moved, "row": OwnerSums, "key": lambda r: r.owner, "late": timedelta(hours=1)}
    batch = QueryView("v", query="SELECT owner FROM Moved", **parts)
    with pytest.raises(ConfigurationError, match="view v: late= is for what a stream keeps, and it has no GROUP BY"):
        refreshed(shop.spark, batch)
    with pytest.raises(ConfigurationError, match="view v: late= is about _time, which the query never mentions"):
        refreshed(shop.spark, QueryView("v", query="SELECT owner, count(*) AS n FROM Moved GROUP BY owner", **parts))


@dataclass(frozen=True)
class District(Region):
    district: str


def test_a_column_that_the_class_of_a_reference_file_inherits_comes_before_an_alias_of_its_name(shop: Shop) -> None:
    """It groups by the file's column, which its rows do not show."""
    query = "SELECT upper(o.region) AS region, count(*) AS n FROM Moved m JOIN o ON o.owner = m.owner GROUP BY region"
    view = sums_of("v", query=query, references={"o": ReferenceFile("owners.csv", row=District)})
    assert refreshed(shop.spark, view).why == "its rows do not show region, by which it groups"
