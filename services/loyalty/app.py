"""The loyalty service as a value."""

from __future__ import annotations

from leftfold import App
from services.loyalty.domain import loyalty

__all__ = ["app"]

app = App("loyalty", partitions=12, deciders=[loyalty], senders=["checkout"])
