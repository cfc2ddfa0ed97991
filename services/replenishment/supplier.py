"""The supplier as the chain sees it: what is ordered comes a day later."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from events.inventory import StockOrdered
from leftfold import Process, Timer
from services.inventory.commands import Receive

__all__ = ["DELIVERY", "correlate", "evolve", "react", "supplier"]

DELIVERY = timedelta(days=1)
"""How long it takes from an order to the shelf."""

_LAST = datetime.max.replace(tzinfo=UTC) - DELIVERY
"""The last time with a delivery behind it."""


def correlate(given: StockOrdered) -> str:
    """Each stock is delivered by itself."""
    return given.stock_id


def react(given: StockOrdered, orders: int) -> Sequence[Timer[Receive]]:
    """A delivery for each order, under its number: a manual `Receive` does not replace it, `timers cancel` does."""
    at = min(given.at, _LAST) + DELIVERY
    receive = Receive(stock_id=given.stock_id, at=at, quantity=given.quantity)
    return [Timer(name=f"order-{orders + 1}", at=at, command=receive)]


def evolve(orders: int, given: StockOrdered) -> int:
    """How many orders there were."""
    return orders + 1


supplier = Process(
    "supplier",
    inputs=StockOrdered,
    sends=Receive,
    state=int,
    initial_state=0,
    correlate=correlate,
    react=react,
    evolve=evolve,
)
