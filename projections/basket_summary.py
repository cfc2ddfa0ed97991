"""What is in this basket, and what does it come to?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from events.baskets import (
    BasketCheckedOut,
    BasketEvent,
    BasketOpened,
    BasketPaid,
    BasketReopened,
    CouponApplied,
    CouponReturned,
    ItemAdded,
)
from leftfold import FoldView

__all__ = ["BasketSummary", "basket_summary", "evolve"]


@dataclass(frozen=True)
class BasketSummary:
    """A basket at a glance; `coupons` is what manufacturers pay of `total`.

    `paid_at` stays empty for what was paid at the register, at the time of the checkout.
    """

    basket_id: str
    opened_at: datetime
    household_id: str = ""
    store_id: str = ""
    lines: int = 0
    total: Decimal = Decimal("0.00")
    coupons: Decimal = Decimal("0.00")
    checked_out_at: datetime | None = None
    paid_at: datetime | None = None

    @property
    def due(self) -> Decimal:
        """What the household pays itself."""
        return self.total - self.coupons


def evolve(row: BasketSummary | None, event: BasketEvent) -> BasketSummary:
    """The basket after one more event of its own stream."""
    row = row or BasketSummary(basket_id=event.basket_id, opened_at=event.at)
    match event:
        case BasketOpened():
            return replace(row, household_id=event.household_id, store_id=event.store_id)
        case ItemAdded():
            return replace(row, lines=row.lines + 1, total=row.total + event.sales_value)
        case CouponApplied():
            return replace(row, coupons=row.coupons + event.coupon_disc)
        case BasketCheckedOut():
            return replace(row, total=event.total, checked_out_at=event.at)
        case BasketReopened():
            return replace(row, checked_out_at=None)
        case CouponReturned():
            return replace(row, coupons=row.coupons - event.coupon_disc)
        case BasketPaid():
            return replace(row, paid_at=event.at)


basket_summary = FoldView("basket_summary", events=BasketEvent, row=BasketSummary, evolve=evolve)
