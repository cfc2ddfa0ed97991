"""A tiny App whose commands the tests send."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from leftfold import App, Command, Decider, DomainError, Event

__all__ = ["NoSeats", "Reserve", "app"]


class NoSeats(DomainError, message="show {show_id} has {left} seats left, at {price}"):
    """There are fewer seats than asked for."""

    show_id: str
    left: int
    price: Decimal


class Reserve(Command, category="shows", key="show_id", rejects=(NoSeats,)):
    """Take seats of a show."""

    show_id: str
    seats: int = 1


class Reserved(Event, category="shows", key="show_id"):
    """Seats of a show were taken."""

    show_id: str
    seats: int


@dataclass(frozen=True)
class Show:
    """How many seats of a show are taken."""

    taken: int = 0


def decide(command: Reserve, state: Show) -> list[Reserved]:
    """Take them."""
    return [Reserved(show_id=command.show_id, seats=command.seats)]


def evolve(state: Show, event: Reserved) -> Show:
    """Count them."""
    return Show(state.taken + event.seats)


shows = Decider(
    "shows", commands=Reserve, events=Reserved, state=Show, initial_state=Show(), decide=decide, evolve=evolve
)
app = App("theatre", partitions=3, deciders=[shows])
