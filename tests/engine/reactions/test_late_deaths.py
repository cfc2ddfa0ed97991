"""A try that outlives its deadline may still kill the process: it is nobody's alibi until its thread ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leftfold import Delivery
from leftfold.engine.reactions.delivery import PendingDelivery
from leftfold.engine.reactions.executor import DEATHS
from leftfold.engine.reactions.processor import Handoff, ReactionProcessor
from tests.domains.receipts import Paid, paid, receipts_with
from tests.waiting import wait_until

PLACE = ("visits.events", 0)
TIMEOUT, LATE = 1.0, 1.5


class Life:
    """One process whose clock is moved by hand; its acts end when they are let go."""

    def __init__(self, left: Handoff, *visits: str, **other: Any) -> None:
        self.now, self.begun, self.parked = 0.0, list[tuple[str, int]](), list[tuple[int, str]]()
        self._ends: dict[tuple[str, int], threading.Event] = {}
        self._failing: set[tuple[str, int]] = set()
        self._is_over = False
        given = {"timeout": TIMEOUT, "backoff": 1.0, "longest": 1.0, **other}
        self.acting = ReactionProcessor(
            receipts_with(self._act, **given), self._park, note=self._noted, clock=lambda: self.now
        )
        self.committed = left
        self.acting.hold(PLACE, left)
        for offset, visit in enumerate(visits):
            self.acting.take(paid(visit, offset))

    def _act(self, event: Paid, delivery: Delivery) -> None:
        end = self._ends[event.visit, delivery.attempt] = threading.Event()
        self.begun.append((event.visit, delivery.attempt))
        if not self._is_over:
            end.wait(240.0)
        if (event.visit, delivery.attempt) in self._failing:
            raise OSError("down")

    def _park(self, pending: PendingDelivery, error: BaseException) -> None:
        self.parked.append((pending.record.offset, str(error)))

    def _noted(self) -> bool:
        self.committed = self.acting.left()[PLACE]
        return True

    def pass_by(self, seconds: float) -> None:
        """Time passes, and the process looks what has become due."""
        self.now += seconds
        for _ in range(3):
            self.acting.step(0.0)
        self._noted()

    def wait(self, is_so: Callable[[], bool], awaited: str) -> None:
        """Steps until something is so; no time passes."""

        def is_so_now() -> bool:
            self.acting.step(0.01)
            return is_so()

        wait_until(is_so_now, awaited)
        self._noted()

    def end(self, visit: str, attempt: int, *, fails: bool = False) -> None:
        """Lets a try end."""
        if fails:
            self._failing.add((visit, attempt))
        self._ends[visit, attempt].set()

    def note(self) -> Any:
        """What a successor finds."""
        return json.loads(self.committed.note)

    def over(self) -> None:
        """Lets all threads end."""
        self._is_over = True
        for end in list(self._ends.values()):
            end.set()


@contextmanager
def life(left: Handoff, *visits: str, **other: Any) -> Iterator[Life]:
    """A process that dies at the end of the block."""
    one = Life(left, *visits, **other)
    try:
        yield one
    finally:
        one.over()


def test_what_kills_its_process_behind_its_deadline_is_parked_at_its_third_death() -> None:
    left = Handoff(0, "")
    for _ in range(DEATHS + 1):
        with life(left, "guilty", "innocent") as one:
            one.wait(lambda: ("guilty", 1) in one.begun, "the try")
            one.pass_by(LATE)
            left = one.committed
    with life(left, "guilty", "innocent") as one:
        one.wait(lambda: bool(one.parked), "its end")
        assert one.parked == [(0, f"the process died {DEATHS} times in a row while it acted")]


def test_a_try_whose_time_is_over_is_noted_until_its_thread_ends_and_then_cleared() -> None:
    with life(Handoff(0, '{"deaths":{"0":1},"at":[]}'), "slow", backoff=90.0, longest=90.0) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.note() == {"deaths": {"0": 1}, "at": [0]}
        one.end("slow", 1)
        one.wait(lambda: '"deaths"' not in one.acting.left()[PLACE].note, "its end")
        assert one.note() == {"at": []}


def test_the_end_of_a_later_try_is_no_alibi_while_an_earlier_one_goes_on() -> None:
    with life(Handoff(0, '{"deaths":{"0":1},"at":[]}'), "slow", "next") as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        one.pass_by(LATE)
        one.wait(lambda: ("next", 1) in one.begun, "the other")
        one.end("next", 1)
        one.wait(lambda: ("slow", 2) in one.begun, "the second try, alone")
        assert one.note() == {"deaths": {"0": 1}, "at": [0]}
        one.end("slow", 2, fails=True)
        one.wait(lambda: not one.acting.step(0.0), "its end")
        assert one.note() == {"deaths": {"0": 1}, "at": [0]}
        one.end("slow", 1)
        one.wait(lambda: '"deaths"' not in one.acting.left()[PLACE].note, "the end of the first one")


def test_nothing_begins_beside_a_suspect_that_was_just_left_and_nothing_waits_for_it_for_ever() -> None:
    with life(Handoff(0, '{"deaths":{"0":1},"at":[]}'), "slow", "next", attempts=1) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.parked == [(0, f"no end within {TIMEOUT:g} s")], "as without suspicion"
        assert one.begun == [("slow", 1)]
        one.pass_by(TIMEOUT)
        one.wait(lambda: ("next", 1) in one.begun, "the other, though the thread hangs")
        assert one.note() == {"at": [1]}, "what is done is not looked at again"


def test_a_suspect_begins_when_what_was_just_left_has_had_its_time() -> None:
    with life(Handoff(0, '{"deaths":{"1":1},"at":[]}'), "slow", "suspect", attempts=1) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.begun == [("slow", 1)]
        one.pass_by(TIMEOUT)
        one.wait(lambda: ("suspect", 1) in one.begun, "the suspect")
