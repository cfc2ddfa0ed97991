"""Work in the background takes its share of a core and no more."""

from __future__ import annotations

import threading
import time

import pytest

from leftfold.engine.verify.verification import Throttle


def test_a_throttle_keeps_to_its_share() -> None:
    slept: list[float] = []
    worked, now = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(0.1, worked=lambda: worked, clock=lambda: now, sleep=sleep)
    for _ in range(100):
        worked, now = worked + 0.01, now + 0.01
        throttle.pause()
    assert now == pytest.approx(10 * worked, rel=0.02)
    assert max(slept) <= 1.0
    worked += 3.0
    throttle.rest()
    assert now >= 10 * worked, "nothing is left over"


def test_a_throttle_counts_every_thread_of_the_process() -> None:
    slept: list[float] = []
    throttle, own = Throttle(0.1, sleep=slept.append, clock=lambda: 0.0), time.thread_time()
    other = threading.Thread(target=lambda: sum(range(3_000_000)))
    other.start()
    other.join()
    throttle.pause()
    assert sum(slept) > 10 * (time.thread_time() - own), "the twin: this thread alone did next to nothing"
