"""The baskets service as a value: its rules, and the views that are folded from its events."""

from __future__ import annotations

from leftfold import App
from projections.basket_summary import basket_summary
from projections.household_spend import household_spend
from projections.product_sales import product_sales
from projections.store_totals import store_totals
from services.baskets.domain import baskets

__all__ = ["app"]

app = App(
    "baskets",
    partitions=12,
    deciders=[baskets],
    senders=["checkout"],
    views=[basket_summary, household_spend, product_sales, store_totals],
)
