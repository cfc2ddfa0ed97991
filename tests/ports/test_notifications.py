from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import Position
from leftfold.ports.notifications import PositionNotifier, Waiter, Waiters
from leftfold.testing.contracts.readers import new_generation
from tests.waiting import WAIT_SECONDS

positions = st.dictionaries(st.integers(0, 3), st.integers(1, 6), max_size=4).map(lambda ps: Position({"t": ps}))
steps = st.one_of(
    st.tuples(st.just("waits"), positions | st.none()),
    st.tuples(st.just("leaves"), st.integers(0, 30)),
    st.tuples(st.just("flush"), positions),
)


@given(st.lists(steps, max_size=60))
def test_a_flush_wakes_exactly_the_waiters_whose_position_is_reached(taken: list[tuple[str, object]]) -> None:
    waiters: Waiters[int] = Waiters(new_generation())
    wanted: dict[int, Position | None] = {}
    seen: dict[int, Position] = {}
    for number, (what, reported) in enumerate(taken):
        if what == "waits":
            assert reported is None or isinstance(reported, Position)
            waiters.add(number, reported)
            wanted[number], seen[number] = reported, Position()
        elif what == "leaves":
            assert isinstance(reported, int)
            waiters.remove(reported)
            wanted.pop(reported, None)
        else:
            assert isinstance(reported, Position)
            seen = {who: before | reported for who, before in seen.items()}
            due = {who for who, position in wanted.items() if position is None or seen[who].covers(position)}
            assert set(waiters.reached(reported)) == due
    assert set(waiters.everybody()) == set(wanted)
    assert len(waiters) == len(wanted)


def test_waiters_that_gave_up_are_not_kept() -> None:
    waiters: Waiters[int] = Waiters(new_generation())
    waiters.add(-1, Position.at("t", 0, 1))
    for number in range(10_000):
        waiters.add(number, Position.at("t", 0, 10**9))
        waiters.remove(number)
    assert sum(map(len, waiters._heaps.values())) <= 200
    assert waiters.reached(Position.at("t", 0, 5)) == [-1]


def test_a_thread_may_wait_without_end() -> None:
    waiter = Waiter(lambda waiter: None)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waiter.wait, math.inf)
        try:
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
        finally:
            waiter.notify()
        waiting.result(WAIT_SECONDS)


class Collecting(Position):
    """A position during whose registration the garbage collector runs."""

    def by_partition(self) -> dict[tuple[str, int], int]:
        gc.collect()
        return super().by_partition()


def abandon(reading: Iterator[object]) -> None:
    """Leaves a generator half way in a reference cycle, so that only the garbage collector closes it."""
    next(reading)
    cycle: list[object] = [reading]
    cycle.append(cycle)


def test_an_abandoned_reader_that_is_collected_while_another_begins_to_wait_blocks_nothing() -> None:
    notifier, generation = PositionNotifier(), new_generation()

    def read() -> Iterator[object]:
        waiter = notifier.waiter(generation, None)
        try:
            yield waiter
        finally:
            waiter.close()

    abandon(read())
    waiters: list[Waiter] = []
    wanted = Collecting({"t": {0: 5}})
    beginning = Thread(target=lambda: waiters.append(notifier.waiter(generation, wanted)), daemon=True)
    beginning.start()
    beginning.join(WAIT_SECONDS)
    assert waiters, "the collector closed a waiter under the lock that this one needs"
    notifier.reached(generation.view, generation.id, Position.at("t", 0, 5))
    waiters[0].wait(WAIT_SECONDS)
    waiters[0].close()
    assert notifier.generations() == [], "the abandoned one was removed"
