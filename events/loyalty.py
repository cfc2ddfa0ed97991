"""What happens to a household's points. Names and fields are the storage format: add, never change."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import Enum

from leftfold import Event

__all__ = [
    "POINT",
    "LoyaltyEvent",
    "PointsEarned",
    "PointsGivenBack",
    "PointsRedeemed",
    "Tier",
    "TierReached",
]

POINT = Decimal("0.01")
"""What a redeemed point pays, in dollars."""


class Tier(Enum):
    """How well a household is treated."""

    BASIC = "basic"
    SILVER = "silver"
    GOLD = "gold"


class _LoyaltyEvent(Event, category="loyalty", key="household_id"):
    household_id: str
    at: datetime


class PointsEarned(_LoyaltyEvent):
    """A household has paid for a checkout and gets points for it."""

    checkout_id: str
    points: int


class TierReached(_LoyaltyEvent):
    """A household has earned enough for a better tier, and keeps it."""

    tier: Tier


class PointsRedeemed(_LoyaltyEvent):
    """A household pays part of a checkout with points."""

    checkout_id: str
    points: int


class PointsGivenBack(_LoyaltyEvent):
    """The checkout came to nothing, and the household has its points again."""

    checkout_id: str
    points: int


LoyaltyEvent = PointsEarned | TierReached | PointsRedeemed | PointsGivenBack
"""The loyalty service: points are earned and redeemed."""
