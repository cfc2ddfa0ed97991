"""What does a store take, and what does it give away?"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold import FoldView
from leftfold.client import Views

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


def ring_up(row: StoreTotals | None, event: BasketCheckedOut | BasketReopened) -> StoreTotals:
    """The store after one more receipt, or without one that came to nothing, in whichever order."""
    row = row or StoreTotals(event.store_id)
    sign = 1 if isinstance(event, BasketCheckedOut) else -1
    return StoreTotals(
        store_id=event.store_id,
        baskets=row.baskets + sign,
        lines=row.lines + sign * len(event.lines),
        sales_value=row.sales_value + sign * event.total,
        retail_disc=sum((sign * line.retail_disc for line in event.lines), row.retail_disc),
        coupon_disc=sum((sign * line.coupon_disc for line in event.lines), row.coupon_disc),
        coupon_match_disc=sum((sign * line.coupon_match_disc for line in event.lines), row.coupon_match_disc),
    )


store_totals = FoldView(
    "store_totals",
    events=BasketCheckedOut | BasketReopened,
    row=StoreTotals,
    key=lambda e: e.store_id,
    evolve=ring_up,
    version=2,
)


def takings(views: Views) -> Decimal:
    """What all stores together take."""
    return sum((row.sales_value for _, row in views[store_totals].items()), Decimal("0.00"))
