"""Streams of query views whose Redis, checkpoint or driver is lost: computed again or from the start, never wrong."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.streaming.computed_rows import QueryWriter
from leftfold.engine.views.leases import members
from leftfold.errors import ConfigurationError, Fenced
from leftfold.model import keys as names
from leftfold.runtime.workers import query_workers
from leftfold.spark.queries.incremental_batches import StreamBatches
from leftfold.spark.queries.query_stream import QueryStream
from tests.reports import Reports
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.dying import dying
from tests.spark.queries.streams import (
    Streaming,
    Trusting,
    agreement,
    caught_up,
    made_elsewhere,
    newest,
    streaming,
    wait_committed,
)
from tests.spark.queries.views import owner_sums, regions
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("forgotten")]

BY_MARKS = pytest.mark.parametrize(
    ("kind", "expected"), [(Streaming, Agreement.EQUAL), (Trusting, Agreement.DIFFERENT)], ids=["marks", "twin"]
)


def keys_of(shop: Shop) -> dict[bytes, bytes]:
    client: Any = shop.store._client.client_of(shop.redis)
    names = [*client.keys("v:{owner_sums:*"), *client.keys("view:owner_sums")]
    return {name: client.dump(name) for name in names}


def put_back(shop: Shop, keys: dict[bytes, bytes]) -> None:
    client: Any = shop.store._client.client_of(shop.redis)
    with client.pipeline() as pipe:
        for name in keys_of(shop):
            pipe.execute_command("DEL", name)
        for name, dump in keys.items():
            pipe.execute_command("RESTORE", name, 0, dump)
        pipe.execute()


@BY_MARKS
def test_a_redis_that_went_back_is_noticed_and_only_the_marks_can_tell(
    shop: Shop, tmp_path: Path, kind: Any, expected: Agreement
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, shop.move("back", "1.00"))
        before = keys_of(shop)
        caught_up(shop, shop.move("forgotten", "2.00"))
        caught_up(shop, shop.move("forgotten", "3.00"))
        wait_committed(shop, tmp_path)
    put_back(shop, before)
    position = shop.move("back", "4.00")
    with streaming(shop, tmp_path, kind=kind) as again:
        caught_up(shop, position)
        assert again.heard("computed from the start" if kind is Streaming else "stream continues")
    assert agreement(shop) is expected


@pytest.mark.parametrize("flushed", [False, True], ids=["rolled back", "flushed"])
def test_a_redis_that_loses_what_was_written_ends_the_run_and_the_next_begins_at_the_start(
    shop: Shop, tmp_path: Path, flushed: bool
) -> None:
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        before = {} if flushed else keys_of(shop)
        caught_up(shop, shop.move("under", "1.00"))
        put_back(shop, before)
        position = shop.move("under", "2.00")
        assert isinstance(stream.wait_ended(), Fenced)
    with streaming(shop, tmp_path) as again:
        again.wait_heard("generation live")
        caught_up(shop, position)
    assert agreement(shop) is Agreement.EQUAL


def lose(file: Path) -> None:
    """Removes a file and Hadoop's checksum of it."""
    file.unlink()
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("lost", "continues"), [(1, True), (2, False)])
def test_lost_commits_are_replayed_or_computed_from_the_start(
    shop: Shop, tmp_path: Path, lost: int, continues: bool
) -> None:
    followed(shop, tmp_path, f"lost {lost}")
    for file in newest(shop, tmp_path, "commits")[:lost]:
        lose(file)
    position = shop.move(f"lost {lost}", "8.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position)
        again.wait_heard("stream continues" if continues else "computed from the start")
    row = shop.views[owner_sums].get(f"lost {lost}")
    assert row is not None
    assert (row.moves, row.total) == (4, Decimal("15.00"))
    assert agreement(shop) is Agreement.EQUAL


@pytest.mark.parametrize("lost", ["state", "state/0/1", "state/0/*/*.changelog", "metadata"])
def test_sums_that_spark_has_lost_are_computed_from_the_start(shop: Shop, tmp_path: Path, lost: str) -> None:
    followed(shop, tmp_path, f"without {lost}")
    home = newest(shop, tmp_path, "commits")[0].parents[1]
    for path in list(home.glob(lost)):
        lose(path) if path.is_file() else rmtree(path)
    position = shop.move(f"without {lost}", "8.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position)
        (started,) = again.reports.of("computed from the start")
        assert str(started["why"]).startswith("view owner_sums: files of Spark's checkpoint ")
        assert len(again.reports.of("stream continues")) == 1, "the sums are looked for only by the first batch"
    row = shop.views[owner_sums].get(f"without {lost}")
    assert row is not None
    assert (row.moves, row.total) == (4, Decimal("15.00"))
    assert agreement(shop) is Agreement.EQUAL


class LosingStream(QueryStream):
    """The reference file changes and the sums are lost after this run has found where it continues."""

    def _stream(self, batches: StreamBatches, stop: threading.Event) -> None:
        if batches.writer is not None:
            Path(self._view.references["owners"].path).write_text("owner,region\nreferred,south\n")
            rmtree(batches.path / "state")
        super()._stream(batches, stop)


class Losing(Streaming):
    kind = LosingStream


def test_a_stream_that_begins_again_has_read_the_reference_files_again(shop: Shop, tmp_path: Path) -> None:
    view, checkpoints = regions(tmp_path / "owners.csv"), tmp_path / "checkpoints"
    (tmp_path / "owners.csv").write_text("owner,region\nreferred,north\n")
    with streaming(shop, checkpoints, view) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, shop.move("referred", "1.00"), view)
    shop.move("referred", "2.00")
    with streaming(shop, checkpoints, view, Losing) as again:
        again.wait_heard("generation live")
    assert again.heard("stream continues")
    live = shop.store.registry(view.name).live_of(view.hash)
    assert live is not None
    assert set(dict(shop.views[view].items())) == {"south", "nowhere"}
    noted = json.loads((checkpoints / view.name / live.id / "references.json").read_text())
    assert noted == {"owners": view.references["owners"].fingerprint()}


class OvertakenStream(QueryStream):
    """Another run takes the view over while this one begins."""

    def _stream(self, batches: StreamBatches, stop: threading.Event) -> None:
        assert QueryWriter(self._view, batches.generation, self._places.store, (), "0123456789abcdef").claim()
        super()._stream(batches, stop)


class Overtaken(Streaming):
    kind = OvertakenStream


def test_a_run_whose_checkpoint_another_one_has_moved_begins_no_generation(shop: Shop, tmp_path: Path) -> None:
    followed(shop, tmp_path, "overtaken")
    rmtree(newest(shop, tmp_path, "commits")[0].parents[1] / "state")
    shop.move("overtaken", "8.00")
    with streaming(shop, tmp_path, kind=Overtaken) as again:
        error = again.wait_ended()
    assert isinstance(error, Fenced)
    assert str(error) == "view owner_sums: another run has taken over its checkpoint"
    assert len(shop.store.registry(owner_sums.name).generations) == 1


@BY_MARKS
def test_a_checkpoint_that_lost_its_newest_batch_is_noticed_and_only_the_marks_can_tell(
    shop: Shop, tmp_path: Path, kind: Any, expected: Agreement
) -> None:
    followed(shop, tmp_path, "replanned")
    planned = newest(shop, tmp_path, "offsets")[0]
    for file in (newest(shop, tmp_path, "commits")[0], planned):
        lose(file)
    # Spark plans a batch of the same number again, now with this event in it; by the checkpoints it is written already.
    shop.move("replanned", "8.00")
    with streaming(shop, tmp_path, kind=kind) as again:
        wait_until(
            lambda: again.heard("generation live") or any(tmp_path.glob(f"*/*/*/commits/{planned.name}")),
            f"a new generation, or batch {planned.name} once more",
        )
        caught_up(shop, shop.move("another", "1.00"))
        assert again.heard("computed from the start" if kind is Streaming else "stream continues")
        assert agreement(shop) is expected


def followed(shop: Shop, checkpoints: Path, owner: str) -> None:
    """A stream has made some batches of an owner's moves, all of which Spark has noted as done."""
    with streaming(shop, checkpoints) as stream:
        stream.wait_heard("generation live")
        for amount in ("1.00", "2.00", "4.00"):
            caught_up(shop, shop.move(owner, amount))
        wait_committed(shop, checkpoints)


@pytest.mark.parametrize("at", ["before seal 1", "after seal 1", "before flush 1", "after flush 2"])
def test_a_driver_killed_around_a_write_leaves_what_the_next_can_continue(shop: Shop, tmp_path: Path, at: str) -> None:
    owner = f"killed {at}"
    with dying(shop, shop.redis, owner_sums.name, at, tmp_path) as (driver, log):
        if "flush" in at:
            wait_until(
                lambda: shop.store.registry(owner_sums.name).live_of(owner_sums.hash) is not None,
                log.read_text,
                running=lambda: driver.poll() is None,
            )

        def has_ended() -> bool:
            shop.move(owner, "1.00")
            return driver.poll() is not None

        wait_until(has_ended, log.read_text)
    position, group = shop.move(owner, "100.00"), names.rebuilds(owner_sums.name)
    wait_until(lambda: not members(shop.store, group), "the lease of the driver to end")
    with streaming(shop, tmp_path / "checkpoints") as again:
        caught_up(shop, position) if "flush" in at else again.wait_heard("generation live")
        assert again.heard("stream continues") is ("flush" in at)
        caught_up(shop, position)
    row = shop.views[owner_sums].get(owner)
    assert row is not None
    assert row.total == Decimal(row.moves - 1) + 100
    assert agreement(shop) is Agreement.EQUAL


def test_a_stream_does_not_continue_with_the_rows_of_another_topic(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint has the offsets of that topic, and they may well be there in this one, of other events."""
    with streaming(shop, tmp_path) as stream:
        stream.wait_heard("generation live")
        caught_up(shop, shop.move("elsewhere", "1.00"))
        wait_committed(shop, tmp_path)
    other = made_elsewhere(shop, owner_sums)
    with streaming(shop, tmp_path) as again:
        error = again.wait_ended()
    assert isinstance(error, ConfigurationError)
    assert f"generation {other.id} of view owner_sums was folded from another ledgers.events" in str(error)
    assert str(error).endswith("build it from this one: leftfold rebuild owner_sums")
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", str(shop.kafka.bootstrap_servers))
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", secret_url(shop.redis))
    monkeypatch.setenv("LEFTFOLD_SPARK_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(query_workers, "_LOOK_SECONDS", 0.05)
    reports, stop = Reports(), threading.Event()
    kept = query_workers.QueryViewThread(
        shop.spark, owner_sums, shuffles=2, keep=0, archive="", stop=stop, report=reports
    )
    kept.start()
    try:
        wait_until(lambda: reports.of("view stopped"), lambda: f"the stop: {reports}")
        result = shop.refresh(owner_sums).run()
        assert (result.swapped, result.why) == (True, f"{other.id} was computed from other topics")
        wait_until(lambda: reports.of("computed from the start"), lambda: f"the stream of this topic: {reports}")
        caught_up(shop, shop.move("elsewhere", "2.00"))
    finally:
        stop.set()
        kept.join(240.0)
    assert reports.of("view stopped") == [{"view": "owner_sums", "why": str(error)}], "once"
    assert kept.error is None
    assert agreement(shop) is Agreement.EQUAL
