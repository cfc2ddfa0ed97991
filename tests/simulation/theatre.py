"""A theatre that sells a ticket twice when a buyer asks twice: what `leftfold simulate` is tried with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leftfold import App, Command, Decider, Event

__all__ = ["app", "commands", "one_each"]


class Sold(Event, category="tickets", key="show"):
    show: str
    buyer: str


class Sell(Command, category="tickets", key="show"):
    show: str
    buyer: str


@dataclass(frozen=True)
class Hall:
    sold: int = 0


def _decide(command: Sell, hall: Hall) -> Sequence[Sold]:
    return [Sold(show=command.show, buyer=command.buyer)]


def _evolve(hall: Hall, event: Sold) -> Hall:
    return Hall(hall.sold + 1)


app = App(
    "theatre",
    partitions=2,
    deciders=[
        Decider("tickets", commands=Sell, events=Sold, state=Hall, initial_state=Hall(), decide=_decide, evolve=_evolve)
    ],
)


def commands(chance: random.Random) -> Sequence[Sequence[Command]]:
    """Two clients: one sells to two buyers, the other to a third."""
    return [[Sell(show="tonight", buyer=buyer) for buyer in buyers] for buyers in (("ada", "bob"), ("cem",))]


def one_each(streams: Mapping[str, Sequence[Event]]) -> Iterable[str]:
    """Each buyer has one ticket for a show."""
    for show, events in streams.items():
        buyers = [event.buyer for event in events if isinstance(event, Sold)]
        yield from (f"{buyer} has two tickets for {show}" for buyer in set(buyers) if buyers.count(buyer) > 1)
