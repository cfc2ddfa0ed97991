"""What may be asked of a product's stock in a store, and the rules that may say no."""

from __future__ import annotations

from datetime import datetime

from leftfold import Command, DomainError

__all__ = [
    "AlreadyReserved",
    "NoUnits",
    "NotReserved",
    "OrderStock",
    "OutOfStock",
    "Receive",
    "Release",
    "Reserve",
    "Ship",
    "StockCommand",
]


class OutOfStock(DomainError, message="{wanted} of {stock_id} are wanted and {left} are left"):
    """Only what is there and not kept for others can be reserved."""

    stock_id: str
    wanted: int
    left: int


class AlreadyReserved(DomainError, message="checkout {checkout_id} has reserved {stock_id} before"):
    """A checkout reserves a product once, with all its units."""

    stock_id: str
    checkout_id: str


class NotReserved(DomainError, message="nothing of {stock_id} is reserved for checkout {checkout_id}"):
    """Only what is kept for a checkout can leave with it, or be free again."""

    stock_id: str
    checkout_id: str


class NoUnits(DomainError, message="{quantity} units of {stock_id} are none"):
    """At least one unit is ordered, received or reserved."""

    stock_id: str
    quantity: int


class _StockCommand(Command, category="inventory", key="stock_id"):
    stock_id: str
    at: datetime


class OrderStock(_StockCommand, rejects=(NoUnits,)):
    """Order units from the supplier."""

    quantity: int


class Receive(_StockCommand, rejects=(NoUnits,)):
    """Put units that came from the supplier on the shelf."""

    quantity: int


class Reserve(_StockCommand, rejects=(NoUnits, OutOfStock, AlreadyReserved)):
    """Keep units for a checkout."""

    checkout_id: str
    quantity: int


class Release(_StockCommand, rejects=(NotReserved,)):
    """Put what was kept for a checkout back."""

    checkout_id: str


class Ship(_StockCommand, rejects=(NotReserved,)):
    """Hand what was kept for a checkout to the household."""

    checkout_id: str


StockCommand = OrderStock | Receive | Reserve | Release | Ship
