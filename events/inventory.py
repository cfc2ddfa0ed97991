"""What happens to one product's stock in one store. Names and fields are the storage format: add, never change."""

from __future__ import annotations

from datetime import datetime

from leftfold import Event

__all__ = [
    "StockEvent",
    "StockOrdered",
    "StockReceived",
    "StockReleased",
    "StockReserved",
    "StockShipped",
    "stock_id",
]


def stock_id(store_id: str, product_id: str) -> str:
    """The key of a product's stock in a store."""
    return f"{store_id}/{product_id}"


class _StockEvent(Event, category="inventory", key="stock_id"):
    stock_id: str
    at: datetime
    quantity: int


class StockOrdered(_StockEvent):
    """Units were ordered from the supplier."""


class StockReceived(_StockEvent):
    """Units came into the store."""


class StockReserved(_StockEvent):
    """Units are kept for a checkout; `left` is what no checkout has reserved now."""

    checkout_id: str
    left: int


class StockReleased(_StockEvent):
    """Units that were kept for a checkout are free again."""

    checkout_id: str


class StockShipped(_StockEvent):
    """Units that were kept for a checkout have left the store with the household."""

    checkout_id: str


StockEvent = StockOrdered | StockReceived | StockReserved | StockReleased | StockShipped
"""The inventory service: units come in, are kept for checkouts, and leave or stay."""
