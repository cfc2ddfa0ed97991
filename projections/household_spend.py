"""How much does a household spend with us, how much do we give back, and when was it last here?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum

from events.baskets import BasketCheckedOut
from leftfold import FoldView
from leftfold.reading import Views

__all__ = ["HouseholdSpend", "Segment", "add", "household_spend", "in_segment"]


class Segment(Enum):
    """How much of its groceries a household buys here, judged by its spending."""

    OCCASIONAL = "occasional"
    REGULAR = "regular"
    DEVOTED = "devoted"


@dataclass(frozen=True)
class HouseholdSpend:
    """One household's receipts added up; `saved` is everything that discounts and coupons took off."""

    household_id: str
    baskets: int
    total: Decimal
    saved: Decimal
    first_visit: datetime
    last_visit: datetime
    segment: Segment


def add(row: HouseholdSpend | None, event: BasketCheckedOut) -> HouseholdSpend:
    """The household after one more receipt, whichever receipt comes first."""
    saved = sum((line.retail_disc + line.coupon_disc + line.coupon_match_disc for line in event.lines), Decimal("0.00"))
    total = event.total + (row.total if row else 0)
    return HouseholdSpend(
        household_id=event.household_id,
        baskets=1 + (row.baskets if row else 0),
        total=total,
        saved=saved + (row.saved if row else 0),
        first_visit=min(event.at, row.first_visit) if row else event.at,
        last_visit=max(event.at, row.last_visit) if row else event.at,
        segment=_segment(total),
    )


def _segment(total: Decimal) -> Segment:
    if total < 500:
        return Segment.OCCASIONAL
    return Segment.REGULAR if total < 2500 else Segment.DEVOTED


household_spend = FoldView(
    "household_spend",
    events=BasketCheckedOut,
    row=HouseholdSpend,
    key=lambda e: e.household_id,
    evolve=add,
    indexes=("segment",),
)


def in_segment(views: Views, segment: Segment) -> dict[str, HouseholdSpend]:
    """The households of a segment by id."""
    return views[household_spend].find(segment=segment)
