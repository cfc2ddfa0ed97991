"""The replenishment as a value."""

from __future__ import annotations

from leftfold import App
from services.replenishment.process import replenishment

__all__ = ["app"]

app = App("replenishment", partitions=12, processes=[replenishment])
