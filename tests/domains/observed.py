"""The trade with a view of its orders and a reaction to them, so that every kind of member is at work."""

from __future__ import annotations

from dataclasses import dataclass

from leftfold import App, Delivery, FoldView, Reaction
from tests.domains.trade import Confirmed, Dropped, OrderEvent, Placed, checkout, orders, payments, stock


@dataclass(frozen=True)
class OrderStatus:
    state: str


def follow(row: OrderStatus | None, event: OrderEvent) -> OrderStatus:
    match event:
        case Placed():
            return OrderStatus("placed")
        case Confirmed():
            return OrderStatus("confirmed")
        case Dropped():
            return OrderStatus("dropped")


def greet(event: Placed, delivery: Delivery) -> None:
    """Does nothing, as quickly as it can."""


order_status = FoldView("order_status", events=OrderEvent, row=OrderStatus, evolve=follow)
greetings = Reaction("greetings", events=Placed, act=greet)


def app_with(partitions: int) -> App:
    """The trade with so many partitions."""
    return App(
        "trade",
        partitions=partitions,
        deciders=[orders, stock, payments],
        processes=[checkout],
        reactions=[greetings],
        views=[order_status],
    )


app = app_with(2)
