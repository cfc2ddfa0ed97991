"""An App with every kind of view, deletes and spreads among them, and random histories for it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from leftfold import App, Command, Decider, Event, FoldView, SpreadView

__all__ = [
    "Close",
    "Closed",
    "LedgerCommand",
    "LedgerEvent",
    "Moved",
    "Opened",
    "Summary",
    "app",
    "by_owner",
    "by_tag",
    "histories",
    "ledgers",
    "stranger",
    "summary",
]


class _LedgerEvent(Event, category="ledgers", key="ledger"):
    ledger: str


class Opened(_LedgerEvent):
    owner: str


class Moved(_LedgerEvent):
    owner: str
    amount: Decimal
    tags: tuple[str, ...] = ()


class Closed(_LedgerEvent):
    owner: str


LedgerEvent = Opened | Moved | Closed


class _LedgerCommand(Command, category="ledgers", key="ledger"):
    ledger: str
    owner: str


class Open(_LedgerCommand):
    pass


class Move(_LedgerCommand):
    amount: Decimal
    tags: tuple[str, ...] = ()


class Close(_LedgerCommand):
    pass


LedgerCommand = Open | Move | Close


@dataclass(frozen=True)
class Ledger:
    moves: int = 0


def decide(command: LedgerCommand, state: Ledger) -> Sequence[LedgerEvent]:
    match command:
        case Open(ledger=ledger, owner=owner):
            return [Opened(ledger=ledger, owner=owner)]
        case Move(ledger=ledger, owner=owner, amount=amount, tags=tags):
            return [Moved(ledger=ledger, owner=owner, amount=amount, tags=tags)] * (1 + len(tags) % 2)
        case Close(ledger=ledger, owner=owner):
            return [Closed(ledger=ledger, owner=owner)]


def evolve(state: Ledger, event: LedgerEvent) -> Ledger:
    match event:
        case Moved():
            return Ledger(state.moves + 1)
        case Opened() | Closed():
            return state


ledgers = Decider(
    "ledgers",
    commands=LedgerCommand,
    events=LedgerEvent,
    state=Ledger,
    initial_state=Ledger(),
    decide=decide,
    evolve=evolve,
)


@dataclass(frozen=True)
class Summary:
    owner: str
    moves: int = 0
    balance: Decimal = Decimal("0.00")
    last: tuple[str, ...] | None = None


def summarise(row: Summary | None, event: LedgerEvent) -> Summary | None:
    match event:
        case Opened(owner=owner):
            return row or Summary(owner)
        case Moved(owner=owner, amount=amount, tags=tags):
            row = row or Summary(owner)
            if amount == Decimal("66.60"):
                raise ValueError("a number that this fold cannot digest")
            return replace(row, moves=row.moves + 1, balance=row.balance + amount, last=tags or None)
        case Closed():
            return None


summary = FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=summarise)


@dataclass(frozen=True)
class Total:
    total: Decimal
    positive: bool


def add(row: Total | None, event: Moved) -> Total | None:
    total = (row.total if row else Decimal("0.00")) + event.amount
    return Total(total, total > 0)


by_owner = FoldView("by_owner", events=Moved, row=Total, key=lambda e: e.owner, evolve=add, indexes=("positive",))


def tagged(event: Moved) -> Iterable[tuple[str, Decimal]]:
    return [(tag, event.amount) for tag in event.tags]


def count(row: Total | None, item: Decimal) -> Total | None:
    total = (row.total if row else Decimal("0.00")) + item
    return Total(total, total > 0) if total else None


by_tag = SpreadView("by_tag", events=Moved, row=Total, each=tagged, evolve=count, indexes=("positive", "total"))

app = App("ledgers", partitions=4, deciders=[ledgers], views=[summary, by_owner, by_tag])


def stranger(seed: int) -> random.Random:
    """A repeatable source of choices."""
    return random.Random(seed)


def histories(chance: random.Random, count: int, *, poison: float = 0.0) -> Iterator[LedgerCommand]:
    """Random commands on some thirty ledgers; a share of `poison` makes the summary's fold fail."""
    for _ in range(count):
        ledger = f"l-{chance.randrange(30)}"
        owner = f"o/{int(ledger[2:]) % 7}"
        match chance.random():
            case x if x < 0.1:
                yield Open(ledger=ledger, owner=owner)
            case x if x < 0.18:
                yield Close(ledger=ledger, owner=owner)
            case _:
                tags = tuple(f"tag {chance.randrange(9)}" for _ in range(chance.randrange(4)))
                amount = Decimal(chance.randrange(-5000, 5000)).scaleb(-2)
                if chance.random() < poison:
                    amount = Decimal("66.60")
                yield Move(ledger=ledger, owner=owner, amount=amount, tags=tags)
