"""Deciding one command on a stream: what is accepted, refused, known already, or a failure of the code."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from leftfold import Command, ConflictError, ContractError, Decider, DecisionFailed, DomainError, Event, FoldView
from leftfold.engine.processing.command_processor import Accepted, Duplicate, Refused, decide
from leftfold.engine.processing.command_wire import Received
from leftfold.engine.processing.stream_state import Stream
from leftfold.ports.message_codec import MessageCodec
from leftfold.testing import fold, given
from tests.domains.shop import Add, Added, Basket, BasketCommand, Closed, Open, baskets, baskets_with

codec: MessageCodec[Any] = MessageCodec(baskets.events)
ADD = Add(basket_id="b", product="p", price=Decimal(1))
NEW = Received(ADD, "b", "c1", "body", b"2026-01-01T00:00:00Z", b"", b"", None, None)


def stream(**changes: Any) -> Stream[Basket]:
    return replace(Stream(0, Basket(), {}, {}), **changes)


def run(on: Stream[Basket], received: Received = NEW, **changes: Any) -> Any:
    return decide(baskets, codec, on, received._replace(**changes), 0.0)


def test_an_accepted_command_moves_the_stream_and_is_remembered() -> None:
    one = stream(version=4)
    outcome = run(one)
    assert isinstance(outcome, Accepted)
    assert outcome.first == one.version == 5
    assert [codec.decode(*event) for event in outcome.events] == [Added(basket_id="b", product="p", price=Decimal(1))]
    assert one.state.lines == (("p", Decimal(1)),)
    assert list(one.answered) == ["c1"]


def test_an_accepted_nothing_keeps_the_version_and_is_remembered() -> None:
    one = stream(version=4, state=Basket(household="h"))
    received = NEW._replace(command=Open(basket_id="b", household="h"))
    assert run(one, received) == Accepted((), 5, 0)
    assert one.version == 4
    assert run(one, received) == Duplicate(4, 0, None)


def test_a_repeated_command_gets_its_first_answer() -> None:
    one = stream()
    run(one, command=Add(basket_id="b", product="twice", price=Decimal(1)))
    run(one, id="c2")
    assert one.version == 3
    before = one.copy()
    assert run(one) == Duplicate(2, 2, None)
    assert one == before


def test_a_repeated_rejection_stays_one_even_if_the_rule_would_now_accept() -> None:
    one = stream(state=Basket(closed=True))
    assert run(one) == Refused(Closed(basket_id="b"), True)
    one.state = Basket()
    again = run(one)
    assert isinstance(again, Duplicate)
    assert again.error is not None
    assert again.error["fields"] == {"basket_id": "b"}


def test_an_id_used_again_with_another_body_is_refused_and_changes_nothing() -> None:
    one = stream()
    run(one)
    before = one.copy()
    outcome = run(one, digest="other")
    assert isinstance(outcome.error, ContractError)
    assert "c1" in str(outcome.error)
    assert not outcome.remembered
    assert one == before


def test_an_answer_that_was_refolded_without_a_digest_still_marks_a_duplicate() -> None:
    one = stream()
    run(one)
    one.answered["c1"] = one.answered["c1"]._replace(digest="")
    assert isinstance(run(one, digest="other"), Duplicate)


def test_an_origin_at_or_below_the_remembered_one_is_a_duplicate() -> None:
    one = stream()
    assert isinstance(run(one, origin=("t/0", 5, 1)), Accepted)
    assert one.origins == {"t/0": (5, 1)}
    for number, origin in enumerate([("t/0", 5, 1), ("t/0", 5, 0), ("t/0", 4, 9)]):
        assert run(one, id=f"d{number}", origin=origin) == Duplicate(1, 0, None)
    for number, origin in enumerate([("t/0", 5, 2), ("t/0", 6, 0), ("t/1", 0, 0)]):
        assert isinstance(run(one, id=f"n{number}", origin=origin), Accepted)


def test_another_version_than_expected_is_a_conflict_and_is_remembered() -> None:
    one = stream(version=2)
    outcome = run(one, expected_version=1)
    assert isinstance(outcome.error, ConflictError)
    assert (outcome.error.expected, outcome.error.actual, outcome.remembered) == (1, 2, True)
    again = run(one, expected_version=1)
    assert isinstance(again, Duplicate)
    assert again.error is not None
    assert again.error["error"] == "ConflictError"
    assert isinstance(run(one, id="c2", expected_version=2), Accepted)
    assert isinstance(run(stream(), expected_version=0), Accepted), "0: the stream must not exist"
    assert isinstance(run(stream(version=1), expected_version=0).error, ConflictError)


def test_the_checks_come_in_order() -> None:
    one = stream(origins={"t/0": (9, 0)}, state=Basket(closed=True))
    everything_wrong = NEW._replace(origin=("t/0", 1, 0), expected_version=7)
    assert isinstance(run(one, everything_wrong), Duplicate)
    assert isinstance(run(one, everything_wrong, origin=None).error, ConflictError)
    assert isinstance(run(one, id="c2").error, Closed)
    assert isinstance(run(one, everything_wrong, digest="other").error, ContractError)


@pytest.mark.parametrize(
    ("product", "message"),
    [
        ("crash", "baskets failed on Add.*a bug in decide"),
        ("undeclared", "raised Undeclared, which Add does not declare; add it to its rejects="),
        ("elsewhere", "Added has key 'elsewhere', but the command decides for 'b' only"),
        ("unfoldable", "a bug in evolve"),
    ],
)
def test_a_decision_that_fails_writes_nothing_and_is_not_remembered(product: str, message: str) -> None:
    one = stream(version=3)
    before = one.copy()
    outcome = run(one, command=Add(basket_id="b", product=product, price=Decimal(1)))
    assert isinstance(outcome.error, DecisionFailed)
    with pytest.raises(DecisionFailed, match=message):
        raise outcome.error
    assert not outcome.remembered
    assert one == before


def test_a_decide_that_yields_its_events_is_one_that_returns_them() -> None:
    def decide_one_by_one(command: BasketCommand, state: Basket) -> Any:
        yield from baskets.decide(command, state)

    one = stream()
    outcome = decide(baskets_with(decide=decide_one_by_one), codec, one, NEW, 0.0)
    assert isinstance(outcome, Accepted)
    assert (len(outcome.events), one.version) == (1, 1)


def test_a_rejection_by_a_subclass_is_not_declared_since_clients_know_errors_by_name() -> None:
    class ClosedForEver(Closed):
        pass

    def refuse(command: BasketCommand, state: Basket) -> Any:
        raise ClosedForEver(basket_id="b")

    outcome = decide(baskets_with(decide=refuse), codec, stream(), NEW, 0.0)
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, DecisionFailed)
    assert "raised ClosedForEver, which Add does not declare" in str(outcome.error)


class Odd(DomainError):
    what: object


class Oddly(Add, rejects=(Odd,)):
    pass


class Rate(Enum):
    HALF = Decimal("0.5")


class Halved(DomainError):
    rate: Rate


class Halve(Add, rejects=(Halved,)):
    pass


def test_an_error_that_its_client_could_not_read_fails_the_decision() -> None:
    """Else `except Halved` would not catch what arrives."""

    def refuse(command: BasketCommand, state: Basket) -> Any:
        raise Halved(rate=Rate.HALF)

    decider = baskets_with(commands=BasketCommand | Halve, decide=refuse)
    received = NEW._replace(command=Halve(basket_id="b", product="p", price=Decimal(1)))
    outcome = decide(decider, codec, stream(), received, 0.0)
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, DecisionFailed)
    assert "baskets rejected with Halved, which cannot be written down: " in str(outcome.error)
    assert "Halved, whose fields this code cannot read" in str(outcome.error)


@pytest.mark.parametrize("answer", [None, 1, [None], ["x"], [ADD], object(), Odd(what=object())])
def test_a_decide_that_returns_nonsense_or_raises_what_cannot_be_encoded_fails(answer: Any) -> None:
    def nonsense(command: BasketCommand, state: Basket) -> Any:
        if isinstance(answer, Odd):
            raise answer
        return answer

    decider = baskets_with(commands=BasketCommand | Oddly, decide=nonsense)
    received = NEW._replace(command=Oddly(basket_id="b", product="p", price=Decimal(1)))
    outcome = decide(decider, codec, stream(), received, 0.0)
    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error, DecisionFailed)
    assert not isinstance(answer, Odd) or "Odd" in str(outcome.error)


class Book(Command, category="rooms", key="room"):
    room: str
    at: datetime


class Booked(Event, category="rooms", key="room"):
    room: str
    at: datetime
    others: tuple[tuple[str, datetime], ...] = ()


@dataclass(frozen=True)
class Room:
    due: datetime
    then: datetime


START = datetime(2024, 3, 30, 11, tzinfo=UTC)
DAY = timedelta(days=1)


def book(command: Book, state: Room) -> list[Booked]:
    if state.due != START:
        raise ValueError(state)
    at = command.at.astimezone(ZoneInfo("Europe/Berlin"))
    return [Booked(room=command.room, at=at), Booked(room=command.room, at=START, others=(("x", at),))]


def due(state: Room | None, event: Booked) -> Room:
    return Room(event.at + DAY, event.others[0][1] + DAY if event.others else START)


rooms: Decider[Book, Room, Booked] = Decider(
    "rooms", commands=Book, events=Booked, state=Room, initial_state=Room(START, START), decide=book, evolve=due
)


def test_the_state_is_the_fold_of_the_log_where_an_event_has_a_time_of_a_zone_with_summer_time() -> None:
    """A day later is another moment by the rules of Berlin, and the log holds the offset alone."""
    one: Stream[Room] = Stream(0, rooms.initial_state, {}, {})
    codec: MessageCodec[Any] = MessageCodec(rooms.events)
    outcome = decide(rooms, codec, one, NEW._replace(command=Book(room="b", at=START)), 0.0)
    assert isinstance(outcome, Accepted)
    read = [codec.decode(*event) for event in outcome.events]
    assert rooms.state.encode(one.state) == rooms.state.encode(rooms.fold(rooms.initial_state, read))
    assert one.state == Room(START + DAY, START + DAY)
    made = book(Book(room="b", at=START), rooms.initial_state)
    assert due(None, made[0]) != due(None, read[0]), "what its zone would say"


def test_given_and_fold_read_events_as_they_are_in_the_log() -> None:
    view = FoldView("due", events=Booked, row=Room, evolve=due)
    made = book(Book(room="b", at=START), rooms.initial_state)
    assert fold(view, made[0]) == {"b": Room(START + DAY, START)}
    with pytest.raises(ValueError, match=r"2024, 3, 31, 12"):
        given(rooms, made[0]).when(Book(room="b", at=START))


@pytest.mark.parametrize("gave", [None, Added(basket_id="b", product="p", price=Decimal(1))], ids=["None", "one event"])
def test_a_decision_that_is_no_list_is_named_with_the_next_step(gave: Any) -> None:
    decider = baskets_with(decide=lambda command, state: gave)
    outcome = decide(decider, codec, stream(), NEW, 0.0)
    assert isinstance(outcome, Refused)
    assert str(outcome.error) == (
        f"baskets failed on {ADD!r}: baskets.decide gave {gave!r}; give a list of events, [] for none"
    )


def test_a_failure_inside_a_library_is_placed_where_the_code_of_the_user_calls_it() -> None:
    def careless(command: BasketCommand, state: Basket) -> Any:
        return [Added.model_validate_json("x")], json.loads("x")

    line = careless.__code__.co_firstlineno + 1
    for decision in (careless, lambda command, state: json.loads("x")):
        outcome = decide(baskets_with(decide=decision), codec, stream(), NEW, 0.0)
        assert isinstance(outcome, Refused)
        assert re.search(r" \(test_deciding\.py:[0-9]+\)$", str(outcome.error))
        assert decision is not careless or str(outcome.error).endswith(f"(test_deciding.py:{line})")
