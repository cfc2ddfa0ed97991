"""SIGKILL of a stream's driver around each of its writes, and two drivers at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from leftfold.engine.rebuild_result import Agreement
from tests.spark.conftest import Shop
from tests.spark.queries import owner_sums
from tests.spark.query_streams import WAIT_SECONDS
from tests.spark.test_streams import _nothing_left, agreement, caught_up, move, streaming  # noqa: F401  # a fixture

pytestmark = [pytest.mark.servers, pytest.mark.slow]


@contextmanager
def driver(shop: Shop, checkpoints: Path, point: str = "never") -> Iterator[subprocess.Popen[str]]:
    words = [shop.kafka.bootstrap_servers, str(shop.redis.url), str(checkpoints), point]
    command = [sys.executable, "-m", "tests.spark.stream_driver", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_live(shop: Shop, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while shop.store.registry(owner_sums.name).live_of(owner_sums.hash) is None:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the driver never made its generation live"
        time.sleep(0.05)


@pytest.mark.parametrize("point", ["before seal 1", "after seal 1", "before flush 1", "after flush 1", "after flush 2"])
def test_a_driver_killed_around_a_write_leaves_what_the_next_can_go_on_with(
    shop: Shop, tmp_path: Path, point: str
) -> None:
    owner = f"killed {point}"
    with driver(shop, tmp_path, point) as process:
        if "flush" in point:
            wait_live(shop, process)
        deadline = time.monotonic() + WAIT_SECONDS
        while process.poll() is None:
            assert time.monotonic() < deadline, f"the driver never came to {point}"
            move(shop, owner, "1.00")
        assert process.returncode == -signal.SIGKILL, process.communicate()[0]
    position = move(shop, owner, "100.00")
    with streaming(shop, tmp_path) as again:
        caught_up(shop, position) if "flush" in point else again.wait_heard("generation live")
        assert again.heard("stream goes on") is ("flush" in point)
        caught_up(shop, position)
    row = shop.views[owner_sums].get(owner)
    assert row is not None
    assert row.total == Decimal(row.moves - 1) + 100
    assert agreement(shop) is Agreement.EQUAL


def test_of_two_drivers_at_once_one_gives_way_and_no_event_counts_twice(shop: Shop, tmp_path: Path) -> None:
    with driver(shop, tmp_path) as older:
        wait_live(shop, older)
        with driver(shop, tmp_path) as younger:
            deadline = time.monotonic() + WAIT_SECONDS
            sent = 0
            while older.poll() is None and younger.poll() is None:
                assert time.monotonic() < deadline, "both drivers go on"
                position = move(shop, "both", "1.00")
                sent += 1
            survivor = younger if older.poll() is not None else older
            position = move(shop, "both", "1.00")
            caught_up(shop, position)
            assert survivor.poll() is None, survivor.communicate()[0]
    row = shop.views[owner_sums].get("both")
    assert row is not None
    assert (row.moves, row.total) == (sent + 1, Decimal(sent + 1))
    assert agreement(shop) is Agreement.EQUAL
