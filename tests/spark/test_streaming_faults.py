"""Streams that are killed, replayed and set back in time fold each event once; twins show what would happen else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from leftfold.engine.streaming.microbatch import MicroBatchDriver, OutOfStep
from leftfold.engine.streaming.microbatch_task import MicroBatchTask
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.model.keys import events
from leftfold.ports.bulk import OffsetRange, raw
from leftfold.ports.codec import header
from leftfold.testing import fold
from tests.domains.ledger import Move, app, by_owner, by_tag, histories, stranger, summary
from tests.redis.server import RedisServer
from tests.spark.careless_jobs import Cutting, Forgetful, Trusting
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.oracle import logged
from tests.spark.streams import Streams, begin_run, dump, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Start = Callable[..., Streams]
ROOT = Path(__file__).parents[2]
VIEWS = pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)


def wrong(streams: Streams, view: Any) -> bool:
    """Whether rows are not those of the log."""
    parked = streams.views[view].describe().parked
    rows = {key: row for key, row in streams.views[view].items() if key not in parked}
    return rows != dict(fold(view, *(event for event in logged(streams.shop) if event.ledger not in parked)))


def test_a_redis_that_is_away_for_a_while_is_waited_for(start: Start, redis: RedisServer) -> None:
    streams = start()
    streams.settle(streams.write(71))
    redis.kill()
    position = streams.write(72)
    streams.until(lambda: streams.said("waiting") > 0, "the stream to notice")
    redis.start()
    streams.settle(position)
    streams.assert_equal_to_the_log()


def test_a_flushed_redis_is_filled_again(start: Start, redis: RedisServer) -> None:
    streams = start()
    streams.settle(streams.write(73))
    with redis.client() as client:
        client.flushall()
    streams.settle(streams.write(74))
    streams.assert_equal_to_the_log()


def test_a_generation_that_lost_a_mark_is_built_again(start: Start, redis: RedisServer) -> None:
    streams = start(by_owner)
    streams.settle(streams.write(75))
    before = streams.views[by_owner].describe().generation
    with redis.client() as client:
        client.delete(f"v:{{{by_owner.name}:{before}:3}}@")
    streams.write(76)
    streams.until(lambda: streams.said("generation lost") > 0, "the stream to notice")
    streams.settle(streams.write(77))
    assert streams.views[by_owner].describe().generation != before
    streams.assert_equal_to_the_log()


def set_back(streams: Streams, redis: RedisServer, view: Any, job: type[MicroBatchTask]) -> str:
    """One run under which Redis goes back in time; why it ended, empty when it did not."""
    streams.settle(streams.write(81))
    for stream in streams.streams:
        stream.close()
    run = begin_run(streams, view, "run", job=job)
    try:
        position = streams.write(82)
        wait_until(lambda: streams.covers(view, position), "the run to fold", WAIT_SECONDS)
        saved = redis.saved()
        position = streams.write(83)
        wait_until(lambda: streams.covers(view, position), "the run to fold", WAIT_SECONDS)
        redis.kill()
        redis.restore(saved)
        redis.start()
        position = streams.write(84)
        wait_until(lambda: run.wait(0.1) or streams.covers(view, position), "the run to end, or not", WAIT_SECONDS)
    except OutOfStep as why:
        return str(why)
    finally:
        run.close()
    return ""


def test_a_redis_that_went_back_in_time_ends_the_run_and_the_next_heals(start: Start, redis: RedisServer) -> None:
    streams = start(summary)
    assert "was written by run." in set_back(streams, redis, summary, MicroBatchTask)
    again = start(summary)
    again.settle(again.write(85))
    again.assert_equal_to_the_log()


def test_twin_without_a_look_at_the_token_events_are_lost(start: Start, redis: RedisServer) -> None:
    streams = start(summary)
    assert set_back(streams, redis, summary, Trusting) == ""
    assert wrong(streams, summary)


def replayed(streams: Streams, redis: RedisServer, view: Any, folder: Path, job: type[MicroBatchTask]) -> bool:
    """Whether a batch that Spark runs again, since it knows of no commit, changes anything in Redis."""
    streams.settle(streams.write(91, 20))
    for stream in streams.streams:
        stream.close()
    run = begin_run(streams, view, "run", checkpoint=folder)
    gains = [Move(ledger=f"gain-{n % 30}", owner="o", amount=Decimal("1.00")) for n in range(60)]
    for more in (histories(stranger(92), 60), gains):
        position = write(streams.shop, more)
        wait_until(lambda at=position: run.wait(0.1) or streams.covers(view, at), "the run to fold", WAIT_SECONDS)  # type: ignore[misc]
    run.close()
    commits = {int(path.name): path for path in (folder / "commits").iterdir() if path.name.isdigit()}
    newest = commits[max(commits)]
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    before, again = dump(redis), list[MicroBatchDriver]()
    run = begin_run(streams, view, "run", checkpoint=folder, job=job, told=again.append)
    wait_until(lambda: run.wait(0.1) or bool(again), "the batch to be run again", WAIT_SECONDS)
    run.close()
    return dump(redis) != before


@VIEWS
def test_a_batch_that_is_run_again_changes_nothing(start: Start, redis: RedisServer, view: Any, tmp_path: Path) -> None:
    streams = start(view)
    assert not replayed(streams, redis, view, tmp_path, MicroBatchTask)
    assert not wrong(streams, view)


@VIEWS
def test_twin_where_the_checkpoint_decides_events_count_twice(
    start: Start, redis: RedisServer, view: Any, tmp_path: Path
) -> None:
    streams = start(view)
    assert replayed(streams, redis, view, tmp_path, Forgetful)
    assert wrong(streams, view)


def cut(streams: Streams, view: Any, job: type[MicroBatchTask]) -> int:
    """How many checkpoints were seen within a decision, by a run whose batches hold a handful of events."""
    streams.settle(streams.write(95, 20))
    for stream in streams.streams:
        stream.close()
    seen: set[tuple[int, int]] = set()

    def look(course: MicroBatchDriver) -> None:
        for checkpoint in course.checkpoints.values():
            seen.update(checkpoint.position.offsets[events("ledgers")].items())

    runs = [begin_run(streams, view, "run 0", job=job, told=look, most=5)]
    position = streams.write(96, 60)

    def is_folded() -> bool:
        try:
            return runs[-1].wait(0.1) or streams.covers(view, position)
        except OutOfStep:
            # An answer of Redis that is late on a slow machine looks like another writer; `leftfold run` begins again.
            runs[-1].close()
            runs.append(begin_run(streams, view, f"run {len(runs)}", job=job, told=look, most=5))
            return False

    wait_until(is_folded, "the run to fold", WAIT_SECONDS)
    runs[-1].close()
    return len(seen & within(streams.shop))


def within(shop: Shop) -> set[tuple[int, int]]:
    """The positions, by partition, at which a decision has begun and not ended."""
    log, topic = KafkaBulkLog(shop.kafka), events("ledgers")
    ends = log.stable_ends([topic])
    found = set()
    for partition in range(app.partitions):
        part = OffsetRange(topic, partition, 0, ends.next_offset(topic, partition))
        for records in log.read(part):
            for record in records:
                k, n = header(raw(part, record).headers, "ce_decision").split(b"/")
                if k != n:
                    found.add((partition, record.offset() + 1))
    log.close()
    return found


@VIEWS
def test_no_flush_falls_within_a_decision(start: Start, view: Any) -> None:
    streams = start(view)
    assert cut(streams, view, MicroBatchTask) == 0
    assert not wrong(streams, view)


@VIEWS
def test_twin_where_batches_are_folded_as_they_come_decisions_are_cut(start: Start, view: Any) -> None:
    streams = start(view)
    assert cut(streams, view, Cutting) > 0


POINTS = [
    (view, f"{when} {who}")
    for view, who in ((summary, "task"), (by_tag, "task"), (by_owner, "driver"))
    for when in ("before", "after")
]


@pytest.mark.slow
@pytest.mark.parametrize(("view", "at"), POINTS, ids=[f"{view.name} {at}" for view, at in POINTS])
def test_a_driver_that_is_killed_at_a_write_leaves_whole_buckets(
    start: Start, shop: Shop, redis: RedisServer, view: Any, at: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.spark.stream_process", shop.kafka.bootstrap_servers, redis.settings.url]
    errors, temporary = tmp_path / "errors", tmp_path / "temporary"
    temporary.mkdir()
    places = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    with errors.open("wb") as err:
        driver = subprocess.Popen(
            [*command, view.name, at, str(tmp_path)], cwd=ROOT, stderr=err, env={**os.environ, **places}
        )
    family = list[psutil.Process]()

    def dead() -> bool:
        if driver.poll() is None:
            family[:] = psutil.Process(driver.pid).children(recursive=True) or family
        return driver.poll() is not None

    try:
        wait_until(dead, lambda: f"the driver to reach {at}: {errors.read_text()}")
        assert driver.returncode == -signal.SIGKILL, errors.read_text()
        assert (tmp_path / "reached").read_text() == at
    finally:
        driver.kill()
        driver.wait()
    streams = start(view)
    streams.settle(streams.write(97))
    streams.assert_equal_to_the_log()
    assert psutil.wait_procs(family, timeout=WAIT_SECONDS)[1] == [], "what the driver had started ends with it"
    assert not list(temporary.rglob("leftfold-run-*"))
    assert not wrong(streams, view)
