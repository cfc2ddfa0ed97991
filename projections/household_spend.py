"""How much does a household spend with us, how much do we give back, and when was it last here?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold import FoldView
from leftfold.client import Views

__all__ = ["HouseholdSpend", "Segment", "add", "household_spend", "in_segment"]

_NOTHING = Decimal("0.00")


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


def add(row: HouseholdSpend | None, event: BasketCheckedOut | BasketReopened) -> HouseholdSpend:
    """The household after one more receipt, or without one that came to nothing, in whichever order.

    A visit is a visit, whatever it comes to.
    """
    sign = 1 if isinstance(event, BasketCheckedOut) else -1
    visit = event.at if isinstance(event, BasketCheckedOut) else event.checked_out_at
    saved = sum((line.retail_disc + line.coupon_disc + line.coupon_match_disc for line in event.lines), _NOTHING)
    total = (row.total if row else _NOTHING) + sign * event.total
    return HouseholdSpend(
        household_id=event.household_id,
        baskets=(row.baskets if row else 0) + sign,
        total=total,
        saved=(row.saved if row else _NOTHING) + sign * saved,
        first_visit=min(visit, row.first_visit) if row else visit,
        last_visit=max(visit, row.last_visit) if row else visit,
        segment=_segment(total),
    )


def _segment(total: Decimal) -> Segment:
    if total < 500:
        return Segment.OCCASIONAL
    return Segment.REGULAR if total < 2500 else Segment.DEVOTED


household_spend = FoldView(
    "household_spend",
    events=BasketCheckedOut | BasketReopened,
    row=HouseholdSpend,
    key=lambda e: e.household_id,
    evolve=add,
    indexes=("segment",),
    version=2,
)


def in_segment(views: Views, segment: Segment) -> dict[str, HouseholdSpend]:
    """The households of a segment by id."""
    return views[household_spend].find(segment=segment)
