"""SIGKILL of a stream's driver around each of its writes, and two drivers at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from leftfold.engine.rebuild.result import Agreement
from tests.servers import secret_url
from tests.spark.conftest import Shop
from tests.spark.queries import owner_sums
from tests.spark.test_streams import _nothing_left, agreement, caught_up, move, streaming  # noqa: F401  # a fixture
from tests.waiting import wait_until

STARTING_SECONDS = 240.0
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]


class Driver:
    """A stream's driver as a process; what it says goes to a file, since Spark's own processes may outlive it."""

    def __init__(self, shop: Shop, checkpoints: Path, point: str = "never") -> None:
        words = [shop.kafka.bootstrap_servers, secret_url(shop.redis), str(checkpoints), point]
        self._command = [sys.executable, "-m", "tests.spark.stream_driver", *words]
        self._log = checkpoints.parent / f"driver-{time.monotonic_ns()}.log"
        self._deadline = time.monotonic() + STARTING_SECONDS

    def __enter__(self) -> Self:
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> int | None:
        """The exit code, None while it runs; it may not run for ever."""
        assert time.monotonic() < self._deadline, f"the driver goes on: {self.said}"
        return self._process.poll()

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_live(self, shop: Shop) -> None:
        live = lambda: shop.store.registry(owner_sums.name).live_of(owner_sums.hash) is not None  # noqa: E731
        wait_until(live, lambda: self.said, running=lambda: self.ended is None)


@pytest.mark.parametrize("point", ["before seal 1", "after seal 1", "before flush 1", "after flush 1", "after flush 2"])
def test_a_driver_killed_around_a_write_leaves_what_the_next_can_go_on_with(
    shop: Shop, tmp_path: Path, point: str
) -> None:
    owner = f"killed {point}"
    checkpoints = tmp_path / "checkpoints"
    with Driver(shop, checkpoints, point) as driver:
        if "flush" in point:
            driver.wait_live(shop)
        while driver.ended is None:
            move(shop, owner, "1.00")
        assert driver.ended == -signal.SIGKILL, driver.said
    position = move(shop, owner, "100.00")
    with streaming(shop, checkpoints) as again:
        caught_up(shop, position) if "flush" in point else again.wait_heard("generation live")
        assert again.heard("stream continues") is ("flush" in point)
        caught_up(shop, position)
    row = shop.views[owner_sums].get(owner)
    assert row is not None
    assert row.total == Decimal(row.moves - 1) + 100
    assert agreement(shop) is Agreement.EQUAL


def test_of_two_drivers_at_once_one_gives_way_and_no_event_counts_twice(shop: Shop, tmp_path: Path) -> None:
    checkpoints, sent = tmp_path / "checkpoints", 0
    with Driver(shop, checkpoints) as older:
        older.wait_live(shop)
        with Driver(shop, checkpoints) as younger:
            while older.ended is None and younger.ended is None:
                move(shop, "both", "1.00")
                sent += 1
            survivor = younger if older.ended is not None else older
            caught_up(shop, move(shop, "both", "1.00"))
            assert survivor.ended is None, survivor.said
    row = shop.views[owner_sums].get("both")
    assert row is not None
    assert (row.moves, row.total) == (sent + 1, Decimal(sent + 1))
    assert agreement(shop) is Agreement.EQUAL
