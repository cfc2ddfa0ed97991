"""Streams that are killed, replayed or lose their Redis fold each event once; a twin shows what would happen else.

What becomes of batches without each of their checks is shown in tests/engine/streaming/test_careless_batches.py.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.streaming.microbatch_task import MicroBatchTask
from tests.domains.ledger import Move, by_owner, by_tag, histories, stranger, summary
from tests.engine.streaming.test_careless_batches import Forgetful
from tests.redis.server import RedisServer
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.dying import dying
from tests.spark.streaming.streams import Streams, begin_run, dump
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Start = Callable[..., Streams]
VIEWS = pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)


def test_a_redis_that_is_away_is_waited_for_and_one_that_lost_everything_or_a_mark_is_filled_again(
    start: Start, redis: RedisServer
) -> None:
    streams = start(by_owner, summary)
    streams.settle(streams.write(71))
    redis.kill()
    position = streams.write(72)
    streams.until(lambda: streams.said("waiting") > 0, "the stream to notice")
    redis.start()
    streams.settle(position)
    streams.assert_equal_to_the_log()
    with redis.client() as client:
        client.flushall()
    streams.settle(streams.write(74))
    streams.assert_equal_to_the_log()
    before, lost = streams.views[by_owner].describe().generation, streams.said("generation lost")
    with redis.client() as client:
        client.delete(f"v:{{{by_owner.name}:{before}:3}}@")
    streams.write(76)
    streams.until(lambda: streams.said("generation lost") > lost, "the stream to notice")
    streams.settle(streams.write(77))
    assert streams.views[by_owner].describe().generation != before
    streams.assert_equal_to_the_log()


def replayed(streams: Streams, redis: RedisServer, view: Any, folder: Path, job: type[MicroBatchTask]) -> bool:
    """Whether a batch that Spark runs again, since it knows of no commit, changes anything in Redis."""
    streams.settle(streams.write(91, 20))
    for stream in streams.streams:
        stream.close()
    run = begin_run(streams, view, "run", checkpoint=folder)
    gains = [Move(ledger=f"gain-{n % 30}", owner="o", amount=Decimal("1.00")) for n in range(60)]
    for more in (histories(stranger(92), 60), gains):
        position = streams.shop.send(more)
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
    assert not streams.is_wrong(view)


@VIEWS
def test_twin_where_the_checkpoint_decides_events_count_twice(
    start: Start, redis: RedisServer, view: Any, tmp_path: Path
) -> None:
    streams = start(view)
    assert replayed(streams, redis, view, tmp_path, Forgetful)
    assert streams.is_wrong(view)


POINTS: list[tuple[Any, str]] = [
    (summary, "before task 4"),
    (summary, "after task 4"),
    (by_tag, "after task 4"),
    (by_owner, "before driver 4"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("view", "at"), POINTS, ids=[f"{view.name} {at}" for view, at in POINTS])
def test_a_driver_that_is_killed_at_a_write_leaves_whole_buckets(
    start: Start, shop: Shop, redis: RedisServer, view: Any, at: str, tmp_path: Path
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    family = list[psutil.Process]()
    places = {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    with dying(shop, redis.settings, view.name, at, tmp_path, **places) as (driver, log):

        def dead() -> bool:
            if driver.poll() is None:
                family[:] = psutil.Process(driver.pid).children(recursive=True) or family
            return driver.poll() is not None

        wait_until(dead, lambda: f"the driver to reach {at}: {log.read_text()}")
    streams = start(view)
    streams.settle(streams.write(97))
    streams.assert_equal_to_the_log()
    assert psutil.wait_procs(family, timeout=WAIT_SECONDS)[1] == [], "what the driver had started ends with it"
    assert not list(temporary.rglob("leftfold-run-*"))
