"""The checkout as a value: the saga, and the views that look across services."""

from __future__ import annotations

from leftfold import App
from projections.household_360 import household_360
from projections.order_journey import order_journey
from services.checkout.process import checkout

__all__ = ["app"]

app = App("checkout", partitions=12, processes=[checkout], views=[order_journey, household_360])
