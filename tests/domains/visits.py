"""Visits to a shop and a reaction to them, as small as they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from leftfold import App, Command, Decider, Delivery, DomainError, Event, Reaction
from leftfold.ports.protocols import RawRecord
from tests.planted import event_headers

__all__ = ["Left", "NoAddress", "Paid", "Pay", "Sent", "app_with", "paid", "receipts_with", "visits"]


class Paid(Event, category="visits", key="visit"):
    visit: str
    number: int = 1


class Left(Event, category="visits", key="visit"):
    visit: str


class Pay(Command, category="visits", key="visit"):
    visit: str


class NoAddress(DomainError, message="{visit} has no address"):
    visit: str


Sent: TypeAlias = list[tuple[Any, Delivery]]

visits = Decider(
    "visits",
    commands=Pay,
    events=Paid | Left,
    state=int,
    initial_state=0,
    decide=lambda command, paid: [Paid(visit=command.visit, number=paid + 1), Left(visit=command.visit)],
    evolve=lambda paid, event: paid + 1 if isinstance(event, Paid) else paid,
)


def receipts_with(act: Callable[[Any, Delivery], None], name: str = "receipts", **other: Any) -> Reaction[Any]:
    """A reaction to payments that tries again soon."""
    return Reaction(name, events=Paid, act=act, **{"backoff": 0.01, "longest": 0.02, **other})


def app_with(*reactions: Reaction[Any], partitions: int = 2) -> App:
    """The visits with these reactions."""
    return App("shop", partitions=partitions, deciders=[visits], reactions=reactions)


def paid(visit: str, offset: int, partition: int = 0, type_: bytes = b"visits.Paid.v1") -> RawRecord:
    """A payment as it stands in the log."""
    event = Paid(visit=visit, number=offset)
    headers = event_headers(event, ce_id=f"{visit}-{offset}".encode(), ce_type=type_)
    return RawRecord("visits.events", partition, offset, visit.encode(), event.model_dump_json().encode(), headers)
