"""Errors of user code that cannot even be shown: what fails is told all the same, and nothing stops of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn

import pytest

from leftfold import App, Command, Decider, DecisionFailed, DomainError, Event, FoldView, memory
from leftfold.safety import shown
from tests.engine.rebuild.test_rebuild import rebuild

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Asked(Event, category="riddles", key="riddle"):
    riddle: str


class Ask(Command, category="riddles", key="riddle"):
    riddle: str


class Unshowable(Exception):
    """Says nothing of itself."""

    def __str__(self) -> NoReturn:
        raise ValueError("no words")

    __repr__ = __str__


class TooDear(DomainError, message="{price:.2f} is too dear"):
    """Whose message takes a number, which nobody checks."""

    price: Any


RAISED: Sequence[tuple[Exception, str]] = [
    (DomainError("a rule in its own words"), "add it to its rejects=: a rule in its own words"),
    (TooDear(price="dear"), "add it to its rejects=: {price:.2f} is too dear TooDear(price='dear')"),
    (TooDear(price=Decimal(3)), "add it to its rejects=: 3.00 is too dear"),
    (Unshowable(), "<Unshowable, of which repr() raises ValueError>"),
]


def riddles(raised: Exception, *, in_fold: bool) -> App:
    def decide(command: Ask, state: int) -> Sequence[Asked]:
        if command.riddle == "hard" and not in_fold:
            raise raised
        return [Asked(riddle=command.riddle)]

    @dataclass(frozen=True)
    class Row:
        asked: int

    def fold(row: Row | None, event: Asked) -> Row:
        if event.riddle == "hard":
            raise raised
        return Row(1)

    decider = Decider(
        "riddles",
        commands=Ask,
        events=Asked,
        state=int,
        initial_state=0,
        decide=decide,
        evolve=lambda state, event: state + 1,
    )
    return App(
        "riddling",
        partitions=1,
        deciders=[decider],
        views=[FoldView("answers", events=Asked, row=Row, evolve=fold)],
    )


@pytest.mark.parametrize(("raised", "told"), RAISED, ids=lambda value: type(value).__name__)
def test_a_decision_that_fails_of_it_is_told_and_the_next_is_made(raised: Exception, told: str) -> None:
    with memory(riddles(raised, in_fold=False), now=NOW) as world:
        with pytest.raises(DecisionFailed) as failed:
            world.client.send(Ask(riddle="hard"))
        assert told in str(failed.value)
        assert world.client.send(Ask(riddle="easy")).version == 1


@pytest.mark.parametrize("raised", [raised for raised, _ in RAISED], ids=lambda value: type(value).__name__)
def test_a_fold_that_fails_of_it_parks_its_row_and_the_others_are_folded(raised: Exception) -> None:
    app = riddles(raised, in_fold=True)
    with memory(app, now=NOW) as world:
        for riddle in ("hard", "easy"):
            world.client.send(Ask(riddle=riddle))
        rows = world.views[app.views[0]]
        assert getattr(rows.get("easy"), "asked", 0) == 1
        assert rows.get("hard") is None
        assert rebuild(world, app.views[0]).run().parked.keys() == {"hard"}


def test_what_can_be_shown_is() -> None:
    assert (shown("text"), shown(3, str)) == ("'text'", "3")
