"""The causation tree, from records in any order, with loops, gaps and repetitions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from leftfold import memory
from leftfold.engine import causation as trace_search
from leftfold.engine.causation import FoundRecords, Trace, TraceNode, TraceStep, id_time, search, step_of
from leftfold.memory.event_log import MemoryLog
from leftfold.model.position import Position, RecordAddress
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import NOW, PATIENCE, Pay, app
from tests.domains.trade import Place as PlaceOrder

TOPICS = ("orders.commands", "orders.events", "checkout.commands")


def step(id_: str, cause: str = "", offset: int = 0, topic: str = "orders.events", beside: str = "") -> TraceStep:
    return TraceStep(
        "event", id_, cause, "c", "orders.Placed.v1", "o", RecordAddress(topic, 0, offset), offset, "", "", beside
    )


def shape(trace: Trace) -> list[tuple[str, int, bool, tuple[RecordAddress, ...], bool]]:
    return [(node.id, depth, node.step is None, tuple(node.again), node.is_loop) for node, depth in trace.walk()]


@st.composite
def histories(draw: st.DrawFn) -> list[TraceStep]:
    """Records that name each other, themselves or no cause, some of one id."""
    ids = st.sampled_from([f"i{n}" for n in range(8)])
    count = draw(st.integers(0, 14))
    return [
        step(
            draw(ids),
            draw(st.one_of(st.just(""), ids, st.just("lost"))),
            offset,
            draw(st.sampled_from(TOPICS)),
            draw(st.sampled_from(("", *TOPICS))),
        )
        for offset in range(count)
    ]


@for_all(histories(), st.randoms())
def test_any_order_of_records_gives_the_same_tree(steps: list[TraceStep], chance: random.Random) -> None:
    shuffled = list(steps)
    chance.shuffle(shuffled)
    assert shape(Trace(steps)) == shape(Trace(shuffled))


@for_all(histories())
def test_every_record_is_shown_once_whatever_it_says_of_its_cause(steps: list[TraceStep]) -> None:
    shown: list[RecordAddress] = []
    for node, _ in Trace(steps).walk():
        shown += [node.step.at] if node.step is not None else []
        shown += node.again
    assert sorted(shown) == sorted(one.at for one in steps)


@for_all(histories())
def test_what_is_shown_below_a_step_is_what_names_it_as_its_cause(steps: list[TraceStep]) -> None:
    for node, _ in Trace(steps).walk():
        for child in node.children:
            assert child.parent is node
            assert child.step is not None
            assert child.step.cause == node.id


def test_a_cause_that_no_topic_holds_stands_above_all_that_name_it() -> None:
    trace = Trace([step("a", "lost", 1), step("b", "lost", 2), step("c", "a", 3)])
    assert [(id_, depth, missing) for id_, depth, missing, _, _ in shape(trace)] == [
        ("lost", 0, True),
        ("a", 1, False),
        ("c", 2, False),
        ("b", 1, False),
    ]


def test_a_loop_is_cut_at_its_earliest_step() -> None:
    trace = Trace([step("b", "a", 2), step("a", "c", 1), step("c", "b", 3), step("d", "c", 4)])
    assert [(id_, depth, loop) for id_, depth, _, _, loop in shape(trace)] == [
        ("a", 0, True),
        ("b", 1, False),
        ("c", 2, False),
        ("d", 3, False),
    ]


def test_an_event_follows_from_the_command_of_its_own_category() -> None:
    commands = [step("x", "", 1, "orders.commands"), step("x", "", 2, "payments.commands")]
    event = step("e", "x", 3, "payments.events", "payments.commands")
    first, second = Trace([*commands, event]).roots
    assert (first.children, [child.id for child in second.children]) == ([], ["e"])


def test_a_chain_of_many_thousand_steps_is_walked() -> None:
    chain = [step(f"{n}", f"{n - 1}" if n else "", n) for n in range(20_000)]
    assert max(depth for _, depth in Trace(chain).walk()) == 19_999


def record(topic: str, headers: dict[str, str], value: object = None, offset: int = 0) -> RawRecord:
    reported = tuple((name, text.encode()) for name, text in headers.items())
    return RawRecord(topic, 0, offset, b"o", json.dumps(value).encode(), reported, 1_000 + offset)


@pytest.mark.parametrize(
    ("topic", "headers", "kind"),
    [
        ("orders.commands", {}, "command"),
        ("orders.commands", {"origin": "checkout.commands/0/1/0", "reply_to": "checkout.commands"}, "command"),
        ("orders.events", {}, "event"),
        ("checkout.commands", {"origin": "orders.events/0/1/0"}, "input"),
        ("checkout.commands", {"origin": "stock.commands/0/1/0", "ce_type": "leftfold.ack.v1"}, "accepted"),
        ("checkout.commands", {"origin": "stock.commands/0/1/0", "ce_type": "leftfold.nack.v1"}, "rejected"),
        ("checkout.commands", {"ce_type": "leftfold.due.v1"}, "due"),
        ("checkout.commands", {"ce_type": "leftfold.cancel.v1"}, "cancelled"),
        ("elsewhere", {}, "other"),
    ],
)
def test_headers_say_what_a_record_is(topic: str, headers: dict[str, str], kind: str) -> None:
    found = step_of(record(topic, {"ce_id": "i", "ce_type": "orders.Placed.v1"} | headers))
    assert found is not None
    assert found.kind == kind


def test_a_dead_letter_is_shown_at_its_original_record_even_by_reference() -> None:
    taken = record("orders.commands", {"ce_id": "i"}, offset=7)
    other = record("orders.commands", {"ce_id": "j"}, offset=8)
    dead = record("orders.dead", {"ce_id": "i", "dead_source": "orders.commands/0/7", "dead_reason": "why"})
    heavy = {"dead_source": "orders.commands/0/8", "dead_reason": "heavy", "dead_reference": "true"}
    steps = [s for r in (dead, record("orders.dead", heavy, offset=1), taken, other) if (s := step_of(r))]
    assert {node.id: list(node.dead.values()) for node in Trace(steps).roots} == {"i": ["why"], "j": ["heavy"]}
    (alone,) = Trace(steps[:2]).roots
    assert (alone.id, list(alone.dead.values())) == ("i", ["why"]), "the record itself may be deleted"


def traced(log: MemoryLog, id_: str) -> Trace:
    reader, topics = log.reader(), list(log.topics)
    starts = Position({topic: dict.fromkeys(range(app.partitions), 0) for topic in topics})
    found = search(reader, id_, starts, reader.ends(topics))
    return Trace(step for record in found.records if (step := step_of(record)) is not None)


def path(node: TraceNode) -> Sequence[str]:
    """The kinds from a step up to what began it all."""
    return [node.step.kind if node.step else "?", *(path(node.parent) if node.parent else ())]


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    """A trade in which one order is paid for, one is refused, and one runs out of time."""
    with memory(app, now=NOW) as world:
        for order, product in (("paid", "a"), ("late", "b"), ("x", "c"), ("y", "c"), ("refused", "c")):
            world.client.send(PlaceOrder(order=order, product=product, at=NOW), id=f"place-{order}")
        world.client.send(Pay(order="paid"), id="pay")
        world.advance(PATIENCE + timedelta(seconds=1))
        return world.log


def test_an_order_is_followed_across_services_to_its_end(log: MemoryLog) -> None:
    kinds = {(node.step.kind, node.step.type): path(node) for node, _ in traced(log, "place-late").walk() if node.step}
    released = kinds["event", "stock.Released.v1"]
    assert list(reversed(released)) == [
        *("command", "event", "input", "due", "command", "event", "input", "command", "event")
    ]
    (root,) = traced(log, "place-late").roots
    assert root.id == "place-late"


def test_a_refusal_stands_below_the_command_that_was_refused(log: MemoryLog) -> None:
    (rejected,) = [
        node for node, _ in traced(log, "place-refused").walk() if node.step and node.step.kind == "rejected"
    ]
    assert rejected.step is not None
    assert (rejected.step.details["error"], rejected.step.details["message"]) == ("OutOfStock", "no c left")
    assert rejected.parent is not None
    assert rejected.parent.step is not None
    assert rejected.parent.step.type == "stock.Reserve.v1"
    assert [child.step.type for child in rejected.children if child.step] == ["orders.Drop.v1"]


def test_every_id_of_a_trace_leads_to_the_whole_of_it(log: MemoryLog) -> None:
    whole = traced(log, "place-late")
    assert len(list(whole.walk())) > 10
    for node, _ in whole.walk():
        assert shape(traced(log, node.id)) == shape(whole)


def test_an_unknown_id_finds_nothing(log: MemoryLog) -> None:
    assert traced(log, "unknown").roots == []


ASTRAY = timedelta(days=1)
NUMBERS = count(1)


def id_at(at: datetime) -> str:
    """An id as a client makes it at a time."""
    return str(UUID(int=int(at.timestamp() * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | next(NUMBERS)))


def start_of(log: MemoryLog, id_: str) -> Position:
    """The first records since a day before an id was made."""
    first = (id_time(id_) or 0) - ASTRAY // timedelta(milliseconds=1)
    return Position(
        {
            topic: {p: sum(r.time < first for r in records) for p, records in enumerate(partitions)}
            for topic, partitions in log.topics.items()
        }
    )


def search_from_id(log: MemoryLog, id_: str) -> FoundRecords:
    """What a search finds that begins at the time of an id."""
    reader, topics = log.reader(), list(log.topics)
    starts = Position({topic: dict.fromkeys(range(app.partitions), 0) for topic in topics})
    return search(reader, id_, starts, reader.ends(topics), begun=lambda id_: start_of(log, id_))


def tree(found: FoundRecords) -> Trace:
    return Trace(step for record in found.records if (step := step_of(record)) is not None)


def ten_days(ahead: timedelta, again: timedelta | None = None) -> tuple[MemoryLog, str]:
    """Ten days of orders, and one among them without a payment; its id is of a clock that is ahead."""
    with memory(app, now=NOW) as world:
        for day in range(10):
            if day == 5:
                id_, late = id_at(world.now + ahead), PlaceOrder(order="late", product="late", at=world.now)
                world.client.send(late, id=id_)
                if again is not None:
                    world.advance(again)
                    world.client.send(late, id=id_, at=NOW + timedelta(days=5))
            order = PlaceOrder(order=f"o{day}", product=f"p{day}", at=world.now)
            world.client.send(order, id=id_at(world.now))
            world.client.send(Pay(order=f"o{day}"), id=id_at(world.now))
            world.advance(NOW + timedelta(days=day + 1) - world.now)
        return world.log, id_


def test_a_search_begins_at_the_time_of_the_id_and_finds_a_timer_much_later() -> None:
    log, id_ = ten_days(timedelta())
    everything = sum(len(records) for partitions in log.topics.values() for records in partitions)
    whole = traced(log, id_)
    assert any(node.step and node.step.kind == "due" for node, _ in whole.walk())
    for node, _ in whole.walk():
        found = search_from_id(log, node.id)
        assert shape(tree(found)) == shape(whole)
        assert found.looked < everything * 0.7


@pytest.mark.parametrize(
    ("ahead", "again"),
    [
        (timedelta(days=3), None),
        (timedelta(days=1, minutes=30), None),
        (timedelta(days=-3), None),
        (timedelta(days=1, minutes=10), timedelta(minutes=20)),
    ],
    ids=["nothing is there", "the end is there", "behind", "sent again"],
)
def test_an_id_of_a_wrong_clock_has_its_whole_trace(
    ahead: timedelta, again: timedelta | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin believes the clock."""
    log, id_ = ten_days(ahead, again)
    whole = traced(log, id_)
    assert len(list(whole.walk())) > 8
    assert shape(tree(search_from_id(log, id_))) == shape(whole)
    monkeypatch.setattr(trace_search, "_is_whole", lambda records, begin, starts: True)
    assert (shape(tree(search_from_id(log, id_))) == shape(whole)) is (ahead < timedelta())


def test_a_cause_that_was_deleted_is_shown_as_missing() -> None:
    log, id_ = ten_days(timedelta())
    (partition,) = {r.partition for rs in log.of("orders.commands") for r in rs if ("ce_id", id_.encode()) in r.headers}
    records = log.of("orders.commands")[partition]
    records[:] = [r for r in records if ("ce_id", id_.encode()) not in r.headers]
    found = search_from_id(log, id_)
    assert shape(tree(found)) == shape(traced(log, id_))
    assert tree(found).roots[0].step is None


@pytest.mark.parametrize(
    ("id_", "at"), [(id_at(NOW), int(NOW.timestamp() * 1000)), ("place-o1", None), (str(UUID(int=0)), None)]
)
def test_an_id_of_a_client_holds_its_time(id_: str, at: int | None) -> None:
    assert id_time(id_) == at
