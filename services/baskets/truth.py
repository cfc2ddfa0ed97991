"""What the views must come to: the same totals straight from the source, with no event in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pandas as pd

from services.baskets.receipts import AMOUNTS, WEEKS, dollars, receipts

__all__ = ["Sums", "Truth", "truth"]


@dataclass(frozen=True)
class Sums:
    """What a set of receipt lines adds up to, in dollars."""

    baskets: int
    lines: int
    quantity: int
    sales_value: Decimal
    retail_disc: Decimal
    coupon_disc: Decimal
    coupon_match_disc: Decimal

    @property
    def total(self) -> Decimal:
        """What the chain takes."""
        return self.sales_value

    @property
    def saved(self) -> Decimal:
        """What discounts and coupons took off."""
        return self.retail_disc + self.coupon_disc + self.coupon_match_disc


@dataclass(frozen=True)
class Truth:
    """The sums of the whole chain, and by id of each household, store and product."""

    chain: Sums
    households: Mapping[str, Sums]
    stores: Mapping[str, Sums]
    products: Mapping[str, Sums]


def truth(weeks: Collection[int] = WEEKS) -> Truth:
    """The totals of these weeks."""
    lines = receipts(weeks).assign(chain="chain")
    return Truth(
        chain=_sums(lines, "chain")["chain"],
        households=_sums(lines, "household_id"),
        stores=_sums(lines, "store_id"),
        products=_sums(lines, "product_id"),
    )


def _sums(lines: pd.DataFrame, by: str) -> Mapping[str, Sums]:
    groups = lines.groupby(by)
    counts = groups["basket_id"].agg(["nunique", "size"])
    totals = pd.concat([counts, groups[["quantity", *AMOUNTS]].sum()], axis="columns")
    return {
        str(key): Sums(baskets, size, quantity, *map(dollars, cents))
        for key, baskets, size, quantity, *cents in totals.itertuples(name=None)
    }
