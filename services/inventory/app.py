"""The inventory service as a value."""

from __future__ import annotations

from leftfold import App
from services.inventory.domain import inventory

__all__ = ["app"]

app = App("inventory", partitions=12, deciders=[inventory], senders=["checkout", "replenishment", "supplier"])
