"""The payments service as a value."""

from __future__ import annotations

from leftfold import App
from services.payments.domain import payments

__all__ = ["app"]

app = App("payments", partitions=12, deciders=[payments], senders=["checkout"])
