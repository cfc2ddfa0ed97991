"""A small shop with three kinds of view: baskets that are opened, filled and checked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

from leftfold import App, Command, Decider, DomainError, Event, FoldView, SpreadView


class _BasketEvent(Event, category="baskets", key="basket_id"):
    basket_id: str


class Opened(_BasketEvent):
    household: str


class Added(_BasketEvent):
    product: str
    price: Decimal


class CheckedOut(_BasketEvent):
    household: str
    total: Decimal
    lines: tuple[tuple[str, Decimal], ...]


BasketEvent: TypeAlias = Opened | Added | CheckedOut


class Closed(DomainError, message="basket {basket_id} is closed"):
    basket_id: str


class TooDear(DomainError, message="{price} is more than {most}"):
    price: Decimal
    most: Decimal = Decimal(100)


class Undeclared(DomainError):
    pass


class _BasketCommand(Command, category="baskets", key="basket_id", rejects=(Closed,)):
    basket_id: str


class Open(_BasketCommand):
    household: str


class Add(_BasketCommand, rejects=(TooDear,)):
    product: str
    price: Decimal


class CheckOut(_BasketCommand):
    pass


BasketCommand: TypeAlias = Open | Add | CheckOut


@dataclass(frozen=True)
class Basket:
    household: str = ""
    lines: tuple[tuple[str, Decimal], ...] = ()
    closed: bool = False


def decide(command: BasketCommand, state: Basket) -> Sequence[BasketEvent]:
    """The rules; products named after a fault have it."""
    basket = command.basket_id
    if state.closed:
        raise Closed(basket_id=basket)
    match command:
        case Open(household=household):
            return [] if state.household == household else [Opened(basket_id=basket, household=household)]
        case Add(product="crash"):
            raise RuntimeError("a bug in decide")
        case Add(product="undeclared"):
            raise Undeclared
        case Add(product="elsewhere", price=price):
            return [Added(basket_id="elsewhere", product="p", price=price)]
        case Add(product="twice", price=price):
            return [
                Added(basket_id=basket, product="p", price=price),
                Added(basket_id=basket, product="q", price=price),
            ]
        case Add(product=product, price=price):
            if price > 100:
                raise TooDear(price=price)
            return [Added(basket_id=basket, product=product, price=price)]
        case CheckOut():
            total = sum((price for _, price in state.lines), Decimal(0))
            return [CheckedOut(basket_id=basket, household=state.household, total=total, lines=state.lines)]


def evolve(state: Basket, event: BasketEvent) -> Basket:
    match event:
        case Opened(household=household):
            return replace(state, household=household)
        case Added(product="unfoldable"):
            raise RuntimeError("a bug in evolve")
        case Added(product=product, price=price):
            return replace(state, lines=(*state.lines, (product, price)))
        case CheckedOut():
            return replace(state, closed=True)


def baskets_with(**other: Any) -> Decider[Any, Any, Any]:
    """The decider of baskets, in which something is different."""
    fields: dict[str, Any] = {
        "commands": BasketCommand,
        "events": BasketEvent,
        "state": Basket,
        "initial_state": Basket(),
        "decide": decide,
        "evolve": evolve,
    }
    return Decider("baskets", **(fields | other))


baskets: Decider[BasketCommand, Basket, BasketEvent] = baskets_with()


@dataclass(frozen=True)
class Summary:
    lines: int = 0
    total: Decimal = Decimal(0)


@dataclass(frozen=True)
class Spend:
    total: Decimal
    tier: str


def summarise(row: Summary | None, event: BasketEvent) -> Summary | None:
    """The open baskets: a row goes when its basket is checked out."""
    row = row or Summary()
    match event:
        case Opened():
            return row
        case Added(product="unfoldable"):
            raise ValueError("cannot be summarised")
        case Added(price=price):
            return Summary(row.lines + 1, row.total + price)
        case CheckedOut():
            return None


def household_of(event: CheckedOut) -> str:
    if event.household == "unkeyed":
        raise ValueError("unkeyed has no key")
    return event.household


def spend(row: Spend | None, event: CheckedOut) -> Spend | None:
    total = (row.total if row else Decimal(0)) + event.total
    return Spend(total, "gold" if total >= 10 else "base")


def lines(event: CheckedOut) -> Iterable[tuple[str, Decimal]]:
    return event.lines


def sell(row: Spend | None, price: Decimal) -> Spend | None:
    return Spend((row.total if row else Decimal(0)) + price, "sold")


open_baskets = FoldView("open_baskets", events=BasketEvent, row=Summary, evolve=summarise)
household_spend = FoldView(
    "household_spend", events=CheckedOut, row=Spend, key=household_of, evolve=spend, indexes=("tier",)
)
product_sales = SpreadView("product_sales", events=CheckedOut, row=Spend, each=lines, evolve=sell)
app = App("shop", partitions=4, deciders=[baskets], views=[open_baskets, household_spend, product_sales])


@dataclass(frozen=True)
class Times:
    times: int


checkouts = FoldView(
    "checkouts", events=CheckedOut, row=Times, evolve=lambda row, event: Times(1 if row is None else row.times + 1)
)
