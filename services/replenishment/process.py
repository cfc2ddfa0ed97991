"""The policy that keeps shelves filled: when little is left, order; not again before that has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from events.inventory import StockOrdered, StockReceived, StockReserved
from leftfold import Process
from services.inventory.commands import OrderStock

__all__ = ["LEAST", "ORDER", "Input", "correlate", "evolve", "react", "replenishment"]

LEAST, ORDER = 3, 12
"""Below so many free units, or below what one checkout took, so many are ordered, or as many as four of these take."""

Input: TypeAlias = StockReserved | StockOrdered | StockReceived


def correlate(given: Input) -> str:
    """Each stock has a policy of its own."""
    match given:
        case StockReserved() | StockOrdered() | StockReceived():
            return given.stock_id


def react(given: Input, on_order: bool) -> Sequence[OrderStock]:
    """An order, if little is left and none is under way."""
    match given:
        case StockReserved() if not on_order and _is_little(given):
            units = max(ORDER, 4 * given.quantity)
            return [OrderStock(stock_id=given.stock_id, at=given.at, quantity=units)]
        case StockReserved() | StockOrdered() | StockReceived():
            return []


def evolve(on_order: bool, given: Input) -> bool:
    """Whether an order is under way."""
    match given:
        case StockReserved():
            return on_order or _is_little(given)
        case StockOrdered():
            return True
        case StockReceived():
            return False


def _is_little(reserved: StockReserved) -> bool:
    return reserved.left < max(LEAST, reserved.quantity)


replenishment = Process(
    "replenishment",
    inputs=Input,
    sends=OrderStock,
    state=bool,
    initial_state=False,
    correlate=correlate,
    react=react,
    evolve=evolve,
)
