"""Which event of a reaction is acted on next, how far all is done, and tries that outlive their deadline."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import Delivery
from leftfold.engine.reactions.deadline_executor import DEATHS, DeadlineExecutor
from leftfold.engine.reactions.pending import Frontier, PendingDelivery, PendingReader
from leftfold.engine.reactions.reaction_processor import Handoff, ReactionProcessor
from leftfold.errors import Fenced
from tests.domains.visits import Paid, paid, receipts_with
from tests.waiting import wait_until

# who is next


class Runs:
    """Acts whose ends the test decides, one thread each."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self._ends: dict[tuple[str, int], list[tuple[threading.Event, list[Exception]]]] = {}
        self._lock = threading.Lock()

    def act(self, event: Paid, delivery: Delivery) -> None:
        place = (event.visit, event.number)
        with self._lock:
            end: tuple[threading.Event, list[Exception]] = (threading.Event(), [])
            self._ends.setdefault(place, []).append(end)
            self.begun.append(place)
        end[0].wait(240.0)
        if end[1]:
            raise end[1][0]

    def end(self, visit: str, number: int, error: Exception | None = None) -> None:
        for ended, errors in self._ends[visit, number]:
            errors.extend([error] if error is not None else [])
            ended.set()


def steps(acting: ReactionProcessor, until: Callable[[], bool], awaited: str) -> None:
    """Steps until something is so."""

    def is_so() -> bool:
        acting.step(0.01)
        return until()

    wait_until(is_so, awaited)


def acting_with(runs: Runs, parked: list[PendingDelivery], **other: Any) -> Iterator[ReactionProcessor]:
    acting = ReactionProcessor(receipts_with(runs.act, **other), lambda pending, error: parked.append(pending))
    for partition in range(2):
        acting.frontier.hold(("visits.events", partition), 0)
    yield acting


def test_a_stream_is_acted_on_in_order_and_others_do_not_wait_for_it() -> None:
    runs, parked = Runs(), list[PendingDelivery]()
    (acting,) = acting_with(runs, parked, attempts=2)
    for record in (paid("a", 0), paid("a", 1), paid("b", 2), paid("c", 0, partition=1)):
        acting.take(record)
    steps(acting, lambda: len(runs.begun) == 3, "three streams at once")
    assert sorted(runs.begun) == [("a", 0), ("b", 2), ("c", 0)]
    runs.end("b", 2)
    runs.end("c", 0)
    at = ("visits.events", 0)
    steps(acting, lambda: acting.frontier.offsets() == {at: 0, ("visits.events", 1): 1}, "the others to be done")
    runs.end("a", 0, OSError("down"))
    steps(acting, lambda: runs.begun.count(("a", 0)) == 2, "another try")
    assert ("a", 1) not in runs.begun
    runs.end("a", 0, OSError("down"))
    steps(acting, lambda: ("a", 1) in runs.begun, "the stream to go on behind what is parked")
    assert [p.record.offset for p in parked] == [0]
    assert acting.frontier.offsets()[at] == 1
    runs.end("a", 1)
    steps(acting, lambda: acting.frontier.offsets()[at] == 3, "all to be done")


def test_no_more_streams_are_acted_on_at_once_than_the_reaction_says() -> None:
    runs = Runs()
    (acting,) = acting_with(runs, [], at_once=2)
    for number, visit in enumerate("abc"):
        acting.take(paid(visit, number))
    steps(acting, lambda: len(runs.begun) == 2, "two acts")
    acting.step(0.05)
    assert len(runs.begun) == 2
    runs.end("a", 0)
    steps(acting, lambda: len(runs.begun) == 3, "the third")
    runs.end("b", 1)
    runs.end("c", 2)
    assert acting.settle(None, 60)


def test_an_act_that_hangs_counts_as_failed_and_is_parked_in_the_end() -> None:
    runs, parked = Runs(), list[PendingDelivery]()
    (acting,) = acting_with(runs, parked, attempts=2, timeout=1.0)
    acting.take(paid("a", 0))
    acting.take(paid("a", 1))
    steps(acting, lambda: ("a", 1) in runs.begun, "the next event of the stream")
    assert [pending.tries for pending in parked] == [2]
    assert runs.begun == [("a", 0), ("a", 0), ("a", 1)]


def test_too_many_hanging_acts_end_the_process() -> None:
    runs = Runs()
    reaction = receipts_with(runs.act, attempts=1, at_once=1, timeout=0.001)
    actors, reader = DeadlineExecutor(reaction), PendingReader(reaction)

    def hang() -> None:
        for number in range(100):
            pending = reader.read(paid(f"v{number}", number))
            assert pending is not None
            actors.start(pending)
            wait_until(lambda: bool(actors.ended(0.001)), "the deadline")

    with pytest.raises(Fenced, match="tries hang"):
        hang()
    for visit, number in list(runs.begun):
        runs.end(visit, number)


def test_the_end_of_an_act_of_a_dropped_partition_is_ignored() -> None:
    runs = Runs()
    (acting,) = acting_with(runs, [])
    acting.take(paid("a", 0))
    steps(acting, lambda: bool(runs.begun), "the act")
    place = ("visits.events", 0)
    assert not acting.settle([place], 0.0)
    acting.drop([place])
    acting.frontier.hold(place, 0)
    acting.take(paid("a", 0))
    steps(acting, lambda: len(runs.begun) == 2, "another try by the processor that has the partition again")
    runs.end("a", 0)
    assert acting.settle(None, 60)
    assert acting.frontier.offsets()[place] == 1


@pytest.mark.parametrize("is_late", [False, True], ids=["for a thread", "for its next try"])
def test_a_stream_that_waits_when_its_partition_leaves_is_acted_on_once_when_it_comes_back(is_late: bool) -> None:
    """A second entry of it would be another act of the same event beside the first."""
    runs, now, place = Runs(), [0.0], ("visits.events", 0)
    reaction = receipts_with(runs.act, attempts=5, at_once=2)
    acting = ReactionProcessor(reaction, lambda pending, error: None, clock=lambda: now[0])
    acting.frontier.hold(place, 0)
    waiting, busy = paid("a", 0), [paid("b", 1), paid("c", 2)]
    if is_late:
        acting.take(waiting)
        steps(acting, lambda: bool(runs.begun), "the first act")
        runs.end("a", 0, OSError("down"))
        steps(acting, lambda: acting.settle(None, 0.0), "its end")
    for record in busy:
        acting.take(record)
    steps(acting, lambda: len(runs.begun) == len(busy) + is_late, "an act on each thread")
    if not is_late:
        acting.take(waiting)
    acting.drop([place])
    acting.frontier.hold(place, 0)
    acting.take(waiting)
    now[0] += 3600.0
    for visit, number in (("b", 1), ("c", 2)):
        runs.end(visit, number)
    steps(acting, lambda: runs.begun.count(("a", 0)) > is_late, "its act")
    for _ in range(5):
        acting.step(0.01)
    assert runs.begun.count(("a", 0)) == 1 + is_late, "once, and none beside it"
    runs.end("a", 0)
    steps(acting, lambda: acting.settle(None, 0.0), "its end")
    assert acting.frontier.offsets()[place] == 1


def test_a_retry_that_is_due_while_all_threads_are_busy_waits_for_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, now = Runs(), [0.0]
    reaction = receipts_with(runs.act, attempts=3, at_once=1, timeout=600.0)
    acting = ReactionProcessor(reaction, lambda pending, error: None, clock=lambda: now[0])
    acting.frontier.hold(("visits.events", 0), 0)
    acting.take(paid("a", 0))
    steps(acting, lambda: bool(runs.begun), "the act")
    runs.end("a", 0, OSError("down"))
    steps(acting, lambda: acting.settle(None, 0.0), "its end")
    acting.take(paid("b", 1))
    steps(acting, lambda: ("b", 1) in runs.begun, "the act of another stream")
    now[0] += 300.0
    waits: list[float] = []

    def ended(self: DeadlineExecutor, wait: float) -> list[Any]:
        waits.append(wait)
        return []

    monkeypatch.setattr(DeadlineExecutor, "ended", ended)
    acting.step(0.25)
    assert waits == [0.25], "and does not ask all the time"
    runs.end("b", 1)


# how far


@settings(max_examples=100)
@given(st.data())
def test_nothing_that_is_not_done_is_ever_behind_the_frontier(data: st.DataObject) -> None:
    frontier, place = Frontier(most_open=5, most_ahead=8), ("t", 0)
    frontier.hold(place, 3)
    taken, open_ = 3, set[int]()
    for _ in range(data.draw(st.integers(0, 30))):
        ends: bool = data.draw(st.booleans())
        if open_ and ends:
            done = data.draw(st.sampled_from(sorted(open_)))
            open_.discard(done)
            frontier.done(place, done)
        elif not frontier.is_full(place):
            taken += data.draw(st.integers(0, 3))
            is_open = data.draw(st.booleans())
            frontier.take(place, taken, is_open=is_open)
            if is_open:
                open_.add(taken)
            taken += 1
        assert frontier.offsets() == {place: min(open_, default=taken) if open_ else frontier.reached(place)}
        assert frontier.is_full(place) or len(open_) < 5
    frontier.drop([place])
    frontier.done(place, 4)
    assert frontier.offsets() == {}


PLACE = ("visits.events", 0)
TIMEOUT, LATE = 1.0, 1.5


class Life:
    """One process whose clock the test moves, and whose acts the test ends."""

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

    def end_all(self) -> None:
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
        one.end_all()


def test_an_act_that_kills_its_process_after_its_deadline_is_parked_at_the_third_death() -> None:
    left = Handoff(0, "")
    for _ in range(DEATHS + 1):
        with life(left, "guilty", "innocent") as one:
            one.wait(lambda: ("guilty", 1) in one.begun, "the try")
            one.pass_by(LATE)
            left = one.committed
    with life(left, "guilty", "innocent") as one:
        one.wait(lambda: bool(one.parked), "its end")
        assert one.parked == [(0, f"the process died {DEATHS} times in a row while it acted")]


def test_an_attempt_past_its_deadline_is_noted_until_its_thread_ends() -> None:
    with life(Handoff(0, '{"deaths":{"0":1},"at":[]}'), "slow", backoff=90.0, longest=90.0) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.note() == {"deaths": {"0": 1}, "at": [0]}
        one.end("slow", 1)
        one.wait(lambda: '"deaths"' not in one.acting.left()[PLACE].note, "its end")
        assert one.note() == {"at": []}


def test_the_end_of_a_later_attempt_clears_no_suspicion_of_an_earlier_one() -> None:
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


def test_no_act_begins_beside_a_hanging_suspect_until_its_time_is_over() -> None:
    with life(Handoff(0, '{"deaths":{"0":1},"at":[]}'), "slow", "next", attempts=1) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.parked == [(0, f"no end within {TIMEOUT:g} s")], "as without suspicion"
        assert one.begun == [("slow", 1)]
        one.pass_by(TIMEOUT)
        one.wait(lambda: ("next", 1) in one.begun, "the other, though the thread hangs")
        assert one.note() == {"at": [1]}, "what is done is not looked at again"


def test_a_suspect_begins_once_the_hanging_act_has_had_its_time() -> None:
    with life(Handoff(0, '{"deaths":{"1":1},"at":[]}'), "slow", "suspect", attempts=1) as one:
        one.wait(lambda: one.begun == [("slow", 1)], "the try")
        one.pass_by(LATE)
        assert one.begun == [("slow", 1)]
        one.pass_by(TIMEOUT)
        one.wait(lambda: ("suspect", 1) in one.begun, "the suspect")
