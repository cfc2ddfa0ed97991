"""The replenishment as a value: who orders, and who delivers."""

from __future__ import annotations

from leftfold import App
from services.replenishment.process import replenishment
from services.replenishment.supplier import supplier

__all__ = ["app"]

app = App("replenishment", partitions=12, processes=[replenishment, supplier])
