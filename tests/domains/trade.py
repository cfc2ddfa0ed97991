"""Orders, stock and payments with a process across them, as small as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from leftfold import App, Cancel, Command, Decider, DomainError, Event, Finished, Process, Rejected, Timer

NOW, PATIENCE = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)


class Placed(Event, category="orders", key="order"):
    order: str
    product: str
    at: datetime


class Confirmed(Event, category="orders", key="order"):
    order: str


class Dropped(Event, category="orders", key="order"):
    order: str
    why: str


class Reserved(Event, category="stock", key="product"):
    product: str
    order: str


class Released(Event, category="stock", key="product"):
    product: str
    order: str


class Paid(Event, category="payments", key="order"):
    order: str


class Place(Command, category="orders", key="order"):
    order: str
    product: str
    at: datetime


class Confirm(Command, category="orders", key="order"):
    order: str


class Drop(Command, category="orders", key="order"):
    order: str
    why: str


class OutOfStock(DomainError, message="no {product} left"):
    product: str


class Reserve(Command, category="stock", key="product", rejects=(OutOfStock,)):
    product: str
    order: str


class Release(Command, category="stock", key="product"):
    product: str
    order: str


class Pay(Command, category="payments", key="order"):
    order: str


OrderCommand: TypeAlias = Place | Confirm | Drop
OrderEvent: TypeAlias = Placed | Confirmed | Dropped
StockCommand: TypeAlias = Reserve | Release
StockEvent: TypeAlias = Reserved | Released


def _order(command: OrderCommand, state: int) -> Sequence[OrderEvent]:
    match command:
        case Place(order=order, product=product, at=at):
            return [Placed(order=order, product=product, at=at)]
        case Confirm(order=order):
            return [Confirmed(order=order)]
        case Drop(order=order, why=why):
            return [Dropped(order=order, why=why)]


def _stock(command: StockCommand, left: int) -> Sequence[StockEvent]:
    match command:
        case Reserve(product=product, order=order):
            if not left:
                raise OutOfStock(product=product)
            return [Reserved(product=product, order=order)]
        case Release(product=product, order=order):
            return [Released(product=product, order=order)]


def _left(left: int, event: StockEvent) -> int:
    return left - 1 if isinstance(event, Reserved) else left + 1


orders = Decider(
    "orders",
    commands=OrderCommand,
    events=OrderEvent,
    state=int,
    initial_state=0,
    decide=_order,
    evolve=lambda state, event: state + 1,
)
stock = Decider(
    "stock", commands=StockCommand, events=StockEvent, state=int, initial_state=2, decide=_stock, evolve=_left
)
payments = Decider(
    "payments",
    commands=Pay,
    events=Paid,
    state=int,
    initial_state=0,
    decide=lambda command, state: [Paid(order=command.order)],
    evolve=lambda state, event: state + 1,
)


@dataclass(frozen=True)
class Checkout:
    """How far an order is; one that is dropped waits for what became of its reservation, to give it back."""

    product: str = ""
    reserved: bool = False
    refused: bool = False
    paid: bool = False
    dropped: bool = False


Input: TypeAlias = Placed | Reserved | Paid | Dropped | Rejected[Reserve]
Sends: TypeAlias = Reserve | Release | Confirm | Drop


def order_of(given: Input) -> str | None:
    match given:
        case Placed() | Reserved() | Paid() | Dropped():
            return given.order
        case Rejected(command=command):
            return command.order


def react(given: Input, state: Checkout) -> Sequence[Sends | Timer[Sends] | Cancel | Finished]:
    match given:
        case Placed(order=order, product=product, at=at):
            timer = Timer(name="patience", at=at + PATIENCE, command=Drop(order=order, why="not paid in time"))
            return [Reserve(product=product, order=order), timer]
        case Reserved(order=order, product=product):
            if state.dropped:
                return [Release(product=product, order=order), Finished()]
            return [Confirm(order=order), Finished()] if state.paid else []
        case Paid(order=order):
            return [Confirm(order=order), Finished()] if state.reserved else []
        case Dropped(order=order):
            if state.reserved:
                return [Release(product=state.product, order=order), Finished()]
            return [Finished()] if state.refused or not state.product else [Cancel("patience")]
        case Rejected(command=command, error=error):
            return [Finished()] if state.dropped else [Cancel("patience"), Drop(order=command.order, why=str(error))]


def evolve(state: Checkout, given: Input) -> Checkout:
    match given:
        case Placed(product=product):
            return replace(state, product=product)
        case Reserved():
            return replace(state, reserved=True)
        case Paid():
            return replace(state, paid=True)
        case Dropped():
            return replace(state, dropped=True)
        case Rejected():
            return replace(state, refused=True)


def checkout_with(**other: Any) -> Process[Any, Any, Any]:
    """The checkout, in which something is different."""
    fields: dict[str, Any] = {
        "inputs": Input,
        "sends": Sends,
        "state": Checkout,
        "initial_state": Checkout(),
        "correlate": order_of,
        "react": react,
        "evolve": evolve,
    }
    return Process(other.pop("name", "checkout"), **(fields | other))


checkout: Process[Input, Checkout, Sends] = checkout_with()
app = App("trade", partitions=4, deciders=[orders, stock, payments], processes=[checkout])
PLACED, PAID, RESERVED = Placed(order="o", product="p", at=NOW), Paid(order="o"), Reserved(product="p", order="o")
"""One order, and what happens to it."""
