"""What a household may do with its points, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from events.loyalty import LoyaltyEvent, PointsEarned, PointsGivenBack, PointsRedeemed, Tier, TierReached
from leftfold.testing import check_deciding_twice, given
from services.loyalty.commands import (
    AlreadyRedeemed,
    EarnPoints,
    GiveBackPoints,
    NotEnoughPoints,
    NothingRedeemed,
    RedeemPoints,
)
from services.loyalty.domain import loyalty

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)


def earn(dollars: str, checkout: str = "b/1") -> EarnPoints:
    """The household has paid."""
    return EarnPoints(household_id="h", at=AT, checkout_id=checkout, amount=Decimal(dollars))


def earned(points: int, checkout: str = "b/1") -> PointsEarned:
    """The household got points."""
    return PointsEarned(household_id="h", at=AT, checkout_id=checkout, points=points)


def reached(tier: Tier) -> TierReached:
    """The household is in a better tier."""
    return TierReached(household_id="h", at=AT, tier=tier)


def redeem(points: int, checkout: str = "c/1") -> RedeemPoints:
    """The household pays with points."""
    return RedeemPoints(household_id="h", at=AT, checkout_id=checkout, points=points)


redeemed = PointsRedeemed(household_id="h", at=AT, checkout_id="c/1", points=60)
given_back = PointsGivenBack(household_id="h", at=AT, checkout_id="c/1", points=60)
give_back = GiveBackPoints(household_id="h", at=AT, checkout_id="c/1")


def test_a_whole_dollar_is_a_point() -> None:
    given(loyalty).when(earn("12.99")).then(earned(12))
    given(loyalty).when(earn("0.99")).then(earned(0))


@pytest.mark.parametrize(
    ("history", "dollars", "events"),
    [
        ((earned(499),), "1.00", (earned(1), reached(Tier.SILVER))),
        ((earned(499),), "0.50", (earned(0),)),
        ((earned(500), reached(Tier.SILVER)), "10.00", (earned(20),)),
        ((earned(2480), reached(Tier.SILVER)), "10.00", (earned(20), reached(Tier.GOLD))),
        ((), "2500.00", (earned(2500), reached(Tier.GOLD))),
        ((earned(2500), reached(Tier.GOLD)), "10.00", (earned(30),)),
    ],
)
def test_who_has_earned_much_earns_more(
    history: tuple[LoyaltyEvent, ...], dollars: str, events: tuple[LoyaltyEvent, ...]
) -> None:
    given(loyalty, *history).when(earn(dollars)).then(*events)


def test_points_that_are_spent_do_not_lower_the_tier() -> None:
    history = (earned(500), reached(Tier.SILVER), redeemed)
    given(loyalty, *history).when(earn("10.00", "d/1")).then(earned(20, "d/1"))


def test_a_household_redeems_what_it_has() -> None:
    given(loyalty, earned(60)).when(redeem(60)).then(redeemed)
    given(loyalty, earned(60)).when(redeem(61)).then_rejected(NotEnoughPoints(household_id="h", points=61, balance=60))
    given(loyalty, earned(60)).when(redeem(0)).then_rejected(NotEnoughPoints(household_id="h", points=0, balance=60))
    given(loyalty, earned(90), redeemed).when(redeem(31, "d/1")).then_rejected(
        NotEnoughPoints(household_id="h", points=31, balance=30)
    )


def test_a_checkout_redeems_once() -> None:
    given(loyalty, earned(90), redeemed).when(redeem(1)).then_rejected(
        AlreadyRedeemed(household_id="h", checkout_id="c/1")
    )


def test_what_was_redeemed_is_given_back_once_and_not_when_it_was_spent() -> None:
    nothing = NothingRedeemed(household_id="h", checkout_id="c/1")
    given(loyalty, earned(60), redeemed).when(give_back).then(given_back)
    given(loyalty, earned(60), redeemed, given_back).when(give_back).then_rejected(nothing)
    given(loyalty, earned(60), redeemed, given_back).when(redeem(60)).then(redeemed)
    given(loyalty, earned(60), redeemed, earned(5, "c/1")).when(give_back).then_rejected(nothing)


def test_an_account_is_decided_alike_from_a_stored_state() -> None:
    check_deciding_twice(loyalty, [earn("700.00"), redeem(60), give_back, redeem(60), earn("20.00", "c/1"), give_back])
