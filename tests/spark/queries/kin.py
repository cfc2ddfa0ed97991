"""Query views over two categories: the ledgers, and the people who own them, with fewer partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from leftfold import App, Command, Decider, Event, QueryView
from tests.domains.ledger import Moved

__all__ = ["RegionSums", "Settle", "Settled", "app", "joined", "lone", "people", "region_sums"]


class Settled(Event, category="people", key="person"):
    person: str
    region: str


class Settle(Command, category="people", key="person"):
    person: str
    region: str


def decide(command: Settle, state: int) -> Sequence[Settled]:
    return [Settled(person=command.person, region=command.region)]


def evolve(state: int, event: Settled) -> int:
    return state + 1


people = Decider("people", commands=Settle, events=Settled, state=int, initial_state=0, decide=decide, evolve=evolve)


@dataclass(frozen=True)
class RegionSums:
    """What owners moved who have settled in a region."""

    region: str
    moves: int
    total: Decimal


region_sums = QueryView(
    "region_sums",
    events=Moved | Settled,
    row=RegionSums,
    key=lambda r: r.region,
    query="""
        SELECT s.region, count(*) AS moves, CAST(sum(m.amount) AS DECIMAL(18, 2)) AS total
        FROM Moved m JOIN Settled s ON s.person = m.owner
        GROUP BY s.region
    """,
)
lone = QueryView(
    "lone",
    events=Moved | Settled,
    row=RegionSums,
    key=lambda r: r.region,
    query="""
        SELECT owner AS region, count(*) AS moves, CAST(sum(amount) AS DECIMAL(18, 2)) AS total
        FROM Moved GROUP BY owner
    """,
)

app = App("kin", partitions=2, deciders=[people], views=[region_sums, lone])


def joined(events: Iterable[Any]) -> dict[str, RegionSums]:
    """The rows of `region_sums`, in plain Python: every move counts in every region where its owner has settled."""
    whole = list(events)
    found: dict[str, RegionSums] = {}
    for settled in (event for event in whole if isinstance(event, Settled)):
        for moved in (event for event in whole if isinstance(event, Moved) and event.owner == settled.person):
            before = found.get(settled.region, RegionSums(settled.region, 0, Decimal("0.00")))
            found[settled.region] = RegionSums(settled.region, before.moves + 1, before.total + moved.amount)
    return found
