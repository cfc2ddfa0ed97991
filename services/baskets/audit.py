"""Compares the views with the truth, to the cent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leftfold.client import Reader, Views
from projections.household_spend import household_spend
from projections.product_sales import product_sales
from projections.store_totals import store_totals
from services.baskets.receipts import AMOUNTS
from services.baskets.truth import Sums, Truth

__all__ = ["audit"]


def audit(views: Views, truth: Truth) -> list[str]:
    """One sentence for each household, store or product on which a view and the truth disagree."""
    return [
        *_differences(views[household_spend], truth.households, "baskets", "total", "saved"),
        *_differences(views[store_totals], truth.stores, "baskets", "lines", *AMOUNTS),
        *_differences(views[product_sales], truth.products, "lines", "quantity", *AMOUNTS),
    ]


def _differences(reader: Reader[Any, str], expected: Mapping[str, Sums], *names: str) -> Iterator[str]:
    rows = dict(reader.items())
    for key in sorted(rows.keys() | expected.keys()):
        found, due = (
            {name: str(getattr(sums, name, None)) for name in names} for sums in (rows.get(key), expected.get(key))
        )
        if found != due:
            yield f"{reader.view.name} {key} is {found}, should be {due}"
