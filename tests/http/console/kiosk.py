"""A kiosk that has one of everything the console shows: a decider, a process, a reaction, and faulty views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from leftfold import (
    App,
    Command,
    Decider,
    Delivery,
    DomainError,
    Event,
    Finished,
    FoldView,
    Process,
    Reaction,
    Timer,
)

__all__ = ["NOW", "Pay", "Place", "Remind", "app", "orders", "spend", "summary"]

NOW = datetime(2026, 1, 1, tzinfo=UTC)

PATIENCE = timedelta(days=30)


class _OrderEvent(Event, category="orders", key="order"):
    order: str


class Placed(_OrderEvent):
    customer: str
    product: str
    price: Decimal
    at: datetime


class Paid(_OrderEvent):
    customer: str
    price: Decimal


class Reminded(_OrderEvent):
    customer: str


OrderEvent: TypeAlias = Placed | Paid | Reminded


class NotPlaced(DomainError, message="order {order} was never placed"):
    order: str


class _OrderCommand(Command, category="orders", key="order", rejects=(NotPlaced,)):
    order: str


class Place(_OrderCommand):
    customer: str
    product: str
    price: Decimal
    at: datetime


class Pay(_OrderCommand):
    pass


class Remind(_OrderCommand):
    pass


OrderCommand: TypeAlias = Place | Pay | Remind


@dataclass(frozen=True)
class Order:
    customer: str = ""
    products: tuple[str, ...] = ()
    due: Decimal = Decimal(0)
    paid: bool = False


def decide(command: OrderCommand, state: Order) -> Sequence[OrderEvent]:
    order = command.order
    match command:
        case Place(customer=customer, product=product, price=price, at=at):
            return [Placed(order=order, customer=customer, product=product, price=price, at=at)]
        case Pay() if state.customer:
            return [Paid(order=order, customer=state.customer, price=state.due)]
        case Remind() if state.customer:
            return [Reminded(order=order, customer=state.customer)]
        case Pay() | Remind():
            raise NotPlaced(order=order)


def evolve(state: Order, event: OrderEvent) -> Order:
    match event:
        case Placed(customer=customer, product=product, price=price):
            return replace(state, customer=customer, products=(*state.products, product), due=state.due + price)
        case Paid():
            return replace(state, due=Decimal(0), paid=True)
        case Reminded():
            return state


orders: Decider[OrderCommand, Order, OrderEvent] = Decider(
    "orders",
    commands=OrderCommand,
    events=OrderEvent,
    state=Order,
    initial_state=Order(),
    decide=decide,
    evolve=evolve,
)


@dataclass(frozen=True)
class Summary:
    customer: str
    products: int
    due: Decimal
    paid: bool


def summarise(row: Summary | None, event: OrderEvent) -> Summary | None:
    """One row for each order; a product called `odd` cannot be summarised."""
    match event:
        case Placed(product="odd"):
            raise ValueError("an odd product has no summary")
        case Placed(customer=customer, price=price):
            return Summary(customer, (row.products if row else 0) + 1, (row.due if row else Decimal(0)) + price, False)
        case Paid():
            return replace(row, due=Decimal(0), paid=True) if row else None
        case Reminded():
            return row


@dataclass(frozen=True)
class Spend:
    total: Decimal
    tier: str


def spent(row: Spend | None, event: Paid) -> Spend | None:
    total = (row.total if row else Decimal(0)) + event.price
    return Spend(total, "gold" if total >= 10 else "base")


def payer(event: Paid) -> str:
    return event.customer


summary = FoldView("order_summary", events=OrderEvent, row=Summary, evolve=summarise)
spend = FoldView("customer_spend", events=Paid, row=Spend, key=payer, evolve=spent, indexes=("tier", "total"))


def react(given: Placed | Paid, waiting: bool) -> Sequence[Timer[Remind] | Finished]:
    if isinstance(given, Paid):
        return [Finished()]
    return [] if waiting else [Timer(name="due", at=given.at + PATIENCE, command=Remind(order=given.order))]


reminders = Process(
    "reminders",
    inputs=Placed | Paid,
    sends=Remind,
    state=bool,
    initial_state=False,
    correlate=lambda event: event.order,
    react=react,
    evolve=lambda waiting, event: isinstance(event, Placed),
)


def post(event: Paid, delivery: Delivery) -> None:
    """Posts a receipt; a customer called `nobox` has no letter box."""
    if event.customer == "nobox":
        raise LookupError("nobox has no letter box")


receipts = Reaction("receipts", events=Paid, act=post, gives_up=(LookupError,), since="start")
app = App(
    "kiosk",
    partitions=2,
    deciders=[orders],
    processes=[reminders],
    reactions=[receipts],
    views=[summary, spend],
)
