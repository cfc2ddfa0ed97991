"""Streams that are killed or lose their Redis fold each event once.

What becomes of batches that are run again, and of those that lack one of their checks, is shown without Spark in
tests/engine/streaming.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.domains.ledger import by_owner, by_tag, summary
from tests.redis.server import RedisServer
from tests.spark.conftest import Shop
from tests.spark.dying import dying
from tests.spark.streaming.streams import Streams
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Start = Callable[..., Streams]


def test_a_redis_that_is_not_reachable_is_waited_for_and_one_that_lost_everything_or_a_mark_is_filled_again(
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
