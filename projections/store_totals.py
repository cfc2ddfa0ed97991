"""What does a store take, and what does it give away?"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from events.baskets import BasketCheckedOut
from leftfold import FoldView
from leftfold.reading import Views

__all__ = ["StoreTotals", "ring_up", "store_totals", "takings"]


@dataclass(frozen=True)
class StoreTotals:
    """All receipts of one store added up."""

    store_id: str
    baskets: int = 0
    lines: int = 0
    sales_value: Decimal = Decimal("0.00")
    retail_disc: Decimal = Decimal("0.00")
    coupon_disc: Decimal = Decimal("0.00")
    coupon_match_disc: Decimal = Decimal("0.00")


def ring_up(row: StoreTotals | None, event: BasketCheckedOut) -> StoreTotals:
    """The store after one more receipt, whichever receipt comes first."""
    row = row or StoreTotals(event.store_id)
    return StoreTotals(
        store_id=event.store_id,
        baskets=row.baskets + 1,
        lines=row.lines + len(event.lines),
        sales_value=row.sales_value + event.total,
        retail_disc=sum((line.retail_disc for line in event.lines), row.retail_disc),
        coupon_disc=sum((line.coupon_disc for line in event.lines), row.coupon_disc),
        coupon_match_disc=sum((line.coupon_match_disc for line in event.lines), row.coupon_match_disc),
    )


store_totals = FoldView(
    "store_totals",
    events=BasketCheckedOut,
    row=StoreTotals,
    key=lambda e: e.store_id,
    evolve=ring_up,
)


def takings(views: Views) -> Decimal:
    """What all stores together take."""
    return sum((row.sales_value for _, row in views[store_totals].items()), Decimal("0.00"))
