"""The checkout as a value: the saga, and the views that look across services."""

from __future__ import annotations

from leftfold import App
from services.checkout.process import checkout

__all__ = ["app"]

app = App("checkout", partitions=12, processes=[checkout])
