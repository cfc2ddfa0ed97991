from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import Position
from leftfold.ports.notifications import Waiter, Waiters
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
