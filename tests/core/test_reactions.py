"""What a reaction is, what a world in memory does with it, and which event is acted on next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import ConfigurationError, ContractError, Delivery, Reaction, memory
from leftfold.codec import header
from leftfold.engine.acting import Acting
from leftfold.engine.actors import Actors
from leftfold.engine.frontier import Frontier
from leftfold.engine.pending import Pending, PendingReader
from leftfold.errors import Fenced
from leftfold.ports import RawRecord
from leftfold.reaction import idempotency_key
from tests.core.receipts import Left, NoAddress, Paid, Pay, Sent, app_with, receipts_with
from tests.worker.waiting import wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def nothing(event: Paid, delivery: Delivery) -> None:
    raise AssertionError(f"nobody asked for {event}")


def paid(visit: str, offset: int, partition: int = 0, type_: bytes = b"visits.Paid.v1") -> RawRecord:
    """A payment as it stands in the log."""
    headers = (
        ("ce_id", f"{visit}-{offset}".encode()),
        ("ce_type", type_),
        ("ce_time", b"2026-01-01T00:00:00Z"),
        ("ce_sequence", b"1"),
        ("ce_decision", b"1/1"),
    )
    value = Paid(visit=visit, number=offset).model_dump_json().encode()
    return RawRecord("visits.events", partition, offset, visit.encode(), value, headers)


# what may be said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "Receipts"}, "lower case"),
        ({"attempts": 0}, "attempts=0"),
        ({"at_once": 0}, "at_once=0"),
        ({"timeout": 0.0}, "timeout=0.0"),
        ({"backoff": -1.0}, "backoff=-1.0"),
        ({"since": "now"}, "neither 'end' nor 'start'"),
        ({"since": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001  # that is the mistake
    ],
)
def test_a_slip_in_a_reaction_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        receipts_with(nothing, **wrong)


def test_an_act_without_an_arm_for_an_event_is_named() -> None:
    def act(event: Paid | Left, delivery: Delivery) -> None:
        match event:
            case Paid():
                pass

    with pytest.raises(ConfigurationError, match="act has no arm for Left"):
        Reaction("receipts", events=Paid | Left, act=act)


def test_a_reaction_and_a_decider_need_different_names() -> None:
    with pytest.raises(ConfigurationError, match="two deciders, processes or reactions are named 'visits'"):
        app_with(receipts_with(nothing, name="visits"))


def test_a_key_depends_on_the_reaction_and_the_event_alone() -> None:
    assert idempotency_key("receipts", "e-1") == "3ace09c2-cf5d-5289-8a87-899dc1d2a293"
    assert idempotency_key("receipts", "e-1") == idempotency_key("receipts", "e-1")
    assert len({idempotency_key(r, e) for r in ("receipts", "hooks") for e in ("e-1", "e-2")}) == 4


@given(st.integers(1, 200), st.floats(0, 1))
def test_pauses_double_up_to_the_longest_and_lose_at_most_a_half(attempt: int, chance: float) -> None:
    reaction = receipts_with(nothing, backoff=1.0, longest=60.0)
    whole = min(60.0, 2.0 ** min(attempt - 1, 60))
    assert whole / 2 <= reaction.pause(attempt, chance) <= whole


# in memory


def test_a_world_in_memory_sends_nothing_and_tells_what_would_be_sent() -> None:
    receipts = receipts_with(nothing)
    with memory(app_with(receipts), now=NOW) as world:
        world.client.send(Pay(visit="v"))
        world.client.send(Pay(visit="v"))
        told = world.deliveries(receipts)
        (_, first), (_, second) = told
        recorded = [r for r in world.events("visits") if isinstance(r.event, Paid)]
    assert [event for event, _ in told] == [Paid(visit="v", number=1), Paid(visit="v", number=2)]
    assert (first.key, first.time, first.attempt, first.reaction) == ("v", NOW, 1, "receipts")
    assert first.idempotency_key != second.idempotency_key
    assert [first.position, second.position] == [r.position for r in recorded]
    assert first.correlation_id == recorded[0].correlation_id


def test_a_test_may_have_acts_run_which_are_tried_again_and_then_parked() -> None:
    sent: Sent = []

    def act(event: Paid, delivery: Delivery) -> None:
        if event.visit == "lost" or delivery.attempt < 3:
            raise OSError("no route")
        sent.append((event, delivery))

    receipts = receipts_with(act, attempts=4)
    with memory(app_with(receipts), now=NOW, acts={receipts: receipts.act}) as world:
        world.client.send(Pay(visit="lost"))
        world.client.send(Pay(visit="v"))
        assert [event for event, _ in sent] == [Paid(visit="v")]
        assert [d.attempt for _, d in world.deliveries(receipts)] == [1, 2, 3, 4, 1, 2, 3]
        assert len({d.idempotency_key for _, d in world.deliveries(receipts)}) == 2
        (dead,) = world.dead("receipts")
    assert header(dead.headers, "dead_reason") == b"OSError: no route"
    assert header(dead.headers, "attempts") == b"4"
    assert dead.value == Paid(visit="lost").model_dump_json().encode()


def test_a_rule_that_says_no_is_not_asked_twice() -> None:
    def act(event: Paid, delivery: Delivery) -> None:
        raise NoAddress(visit=event.visit)

    receipts = receipts_with(act)
    with memory(app_with(receipts), now=NOW, acts={receipts: act}) as world:
        world.client.send(Pay(visit="v"))
        assert len(world.deliveries(receipts)) == 1
        assert header(world.dead("receipts")[0].headers, "dead_reason") == b"NoAddress: v has no address"


def test_what_an_act_causes_comes_behind_what_there_is() -> None:
    seen: list[int] = []

    def act(event: Paid, delivery: Delivery) -> None:
        if event.number < 4:
            world.client.send(Pay(visit=event.visit))
        seen.append(event.number)

    receipts = receipts_with(act)
    with memory(app_with(receipts), now=NOW, acts={receipts: act}) as world:
        world.client.send(Pay(visit="v"))
    assert seen == [1, 2, 3, 4]


def test_acts_of_a_reaction_that_the_app_lacks_are_refused() -> None:
    with (
        pytest.raises(ConfigurationError, match="has no reaction 'hooks'"),
        memory(app_with(), now=NOW, acts={receipts_with(nothing, name="hooks"): nothing}),
    ):
        pass


# reading


def test_a_newer_event_is_waited_at_and_a_broken_one_is_parked() -> None:
    reader = PendingReader(receipts_with(nothing))
    with pytest.raises(ContractError, match="meets visits.Paid version 2 at visits.events\\[0\\]@7 and knows 1"):
        reader.read(paid("v", 7, type_=b"visits.Paid.v2"))
    broken = reader.read(paid("v", 7)._replace(value=b"{}"))
    assert broken is not None
    assert "no visits.Paid.v1" in str(broken.error)
    assert reader.read(paid("v", 7, type_=b"visits.Left.v1")) is None


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
        end[0].wait(60)
        if end[1]:
            raise end[1][0]

    def end(self, visit: str, number: int, error: Exception | None = None) -> None:
        for ended, errors in self._ends[visit, number]:
            errors.extend([error] if error is not None else [])
            ended.set()


def steps(acting: Acting, until: Callable[[], bool], awaited: str) -> None:
    """Steps until something is so."""

    def is_so() -> bool:
        acting.step(0.01)
        return until()

    wait_until(is_so, awaited)


def acting_with(runs: Runs, parked: list[Pending], **other: Any) -> Iterator[Acting]:
    acting = Acting(receipts_with(runs.act, **other), lambda pending, error: parked.append(pending))
    for partition in range(2):
        acting.frontier.hold(("visits.events", partition), 0)
    yield acting


def test_a_stream_is_acted_on_in_order_and_others_do_not_wait_for_it() -> None:
    runs, parked = Runs(), list[Pending]()
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
    runs, parked = Runs(), list[Pending]()
    (acting,) = acting_with(runs, parked, attempts=2, timeout=0.05)
    acting.take(paid("a", 0))
    acting.take(paid("a", 1))
    steps(acting, lambda: ("a", 1) in runs.begun, "the next event of the stream")
    assert [pending.tries for pending in parked] == [2]
    assert runs.begun == [("a", 0), ("a", 0), ("a", 1)]


def test_when_far_too_many_acts_hang_the_process_ends() -> None:
    runs = Runs()
    reaction = receipts_with(runs.act, attempts=1, at_once=1, timeout=0.001)
    actors, reader = Actors(reaction), PendingReader(reaction)

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


def test_what_is_dropped_ends_unheard() -> None:
    runs = Runs()
    (acting,) = acting_with(runs, [])
    acting.take(paid("a", 0))
    steps(acting, lambda: bool(runs.begun), "the act")
    place = ("visits.events", 0)
    assert not acting.settle([place], 0.0)
    acting.drop([place])
    acting.frontier.hold(place, 0)
    acting.take(paid("a", 0))
    steps(acting, lambda: len(runs.begun) == 2, "another try by whoever has the partition again")
    runs.end("a", 0)
    assert acting.settle(None, 60)
    assert acting.frontier.offsets()[place] == 1


# how far


@settings(max_examples=200)
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
