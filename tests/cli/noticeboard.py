"""An App that repeats what clients say in events, rows, refusals, and in why a row or an event is parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from leftfold import App, Command, Decider, Delivery, DomainError, Event, FoldView, QueryView, Reaction

__all__ = ["app"]


class Pinned(Event, category="notices", key="notice"):
    notice: str
    text: str
    weight: Decimal = Decimal(0)


class Pin(Command, category="notices", key="notice"):
    notice: str
    text: str
    weight: Decimal = Decimal(0)


def decide(command: Pin, state: int) -> Sequence[Pinned]:
    if command.text.startswith("no"):
        raise DomainError(command.text)
    return [Pinned(notice=command.notice, text=command.text, weight=command.weight)]


def post(event: Pinned, delivery: Delivery) -> None:
    raise OSError(event.text)


@dataclass(frozen=True)
class Notice:
    text: str


def fold(row: Notice | None, event: Pinned) -> Notice:
    if row is not None:
        raise ValueError(event.text)
    return Notice(event.text)


notices = Decider(
    "notices",
    commands=Pin,
    events=Pinned,
    state=int,
    initial_state=0,
    decide=decide,
    evolve=lambda state, event: state + 1,
)
board = FoldView("board", events=Pinned, row=Notice, evolve=fold)
by_text = FoldView(
    "by_text", events=Pinned, row=Notice, key=lambda e: e.text, evolve=lambda row, event: Notice(event.text)
)


@dataclass(frozen=True)
class Weight:
    notice: str
    weight: Decimal


weights = QueryView(
    "weights",
    events=Pinned,
    row=Weight,
    key=lambda row: row.notice,
    query="SELECT notice, CAST(sum(weight) AS DECIMAL(18, 2)) AS weight FROM Pinned GROUP BY notice",
)
app = App(
    "noticeboard",
    partitions=1,
    deciders=[notices],
    views=[board, by_text, weights],
    reactions=[Reaction("poster", events=Pinned, act=post, attempts=1)],
)
