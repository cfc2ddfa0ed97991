"""What do all services together know of a household?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened
from events.loyalty import PointsEarned, PointsGivenBack, PointsRedeemed, Tier, TierReached
from events.payments import PaymentCaptured, PaymentRefunded, PaymentVoided
from leftfold import FoldView

__all__ = ["Household", "HouseholdEvent", "evolve", "household", "household_360"]

HouseholdEvent = (
    BasketCheckedOut
    | BasketReopened
    | BasketPaid
    | PaymentCaptured
    | PaymentVoided
    | PaymentRefunded
    | PointsEarned
    | PointsRedeemed
    | PointsGivenBack
    | TierReached
)

_NOTHING = Decimal("0.00")
_TIERS = list(Tier)


@dataclass(frozen=True)
class Household:
    """Checkouts and how they ended, in number; dollars captured (for good) and paid; points, and the tier."""

    checkouts: int = 0
    reopened: int = 0
    paid: int = 0
    paid_amount: Decimal = _NOTHING
    captured: Decimal = _NOTHING
    voided: int = 0
    points: int = 0
    tier: Tier = Tier.BASIC
    last_seen: datetime | None = None


def household(event: HouseholdEvent) -> str:
    """The household that an event of any service is about."""
    return event.household_id


def evolve(row: Household | None, event: HouseholdEvent) -> Household:
    """The household after one more event; those of different services may come in any order."""
    row = row or Household()
    row = replace(row, last_seen=max(row.last_seen or event.at, event.at))
    match event:
        case BasketCheckedOut():
            return replace(row, checkouts=row.checkouts + 1)
        case BasketReopened():
            return replace(row, reopened=row.reopened + 1)
        case BasketPaid():
            return replace(row, paid=row.paid + 1, paid_amount=row.paid_amount + event.amount)
        case PaymentCaptured():
            return replace(row, captured=row.captured + event.amount)
        case PaymentRefunded():
            return replace(row, captured=row.captured - event.amount)
        case PaymentVoided():
            return replace(row, voided=row.voided + 1)
        case PointsEarned() | PointsGivenBack():
            return replace(row, points=row.points + event.points)
        case PointsRedeemed():
            return replace(row, points=row.points - event.points)
        case TierReached():
            return replace(row, tier=max(row.tier, event.tier, key=_TIERS.index))


household_360 = FoldView(
    "household_360",
    events=HouseholdEvent,
    row=Household,
    key=household,
    evolve=evolve,
    indexes=("points",),
    version=2,
)
