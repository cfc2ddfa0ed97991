"""The rules of points: some for each dollar paid, more of them in a better tier; each pays a cent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from events.loyalty import LoyaltyEvent, PointsEarned, PointsGivenBack, PointsRedeemed, Tier, TierReached
from leftfold import Decider
from services.loyalty.commands import (
    AlreadyRedeemed,
    EarnPoints,
    GiveBackPoints,
    LoyaltyCommand,
    NegativeAmount,
    NotEnoughPoints,
    NothingRedeemed,
    RedeemPoints,
)

__all__ = ["FROM", "PER_DOLLAR", "Account", "decide", "evolve", "loyalty"]

PER_DOLLAR = {Tier.BASIC: 1, Tier.SILVER: 2, Tier.GOLD: 3}
"""Points for each whole dollar."""

FROM = {Tier.BASIC: 0, Tier.SILVER: 500, Tier.GOLD: 2500}
"""How many points a household has earned, ever, when it reaches a tier."""


@dataclass(frozen=True)
class Account:
    """What the rules must remember of a household; `held` are points redeemed for checkouts that are not paid yet."""

    balance: int = 0
    earned: int = 0
    tier: Tier = Tier.BASIC
    held: Mapping[str, int] = field(default_factory=dict[str, int])


def decide(command: LoyaltyCommand, state: Account) -> Sequence[LoyaltyEvent]:
    """What happens when this is asked of a household's account in this state.

    Raises:
        DomainError: a rule says no; each command lists its own in `rejects`.
    """
    match command:
        case EarnPoints():
            return _earn(command, state)
        case RedeemPoints():
            return [_redeem(command, state)]
        case GiveBackPoints():
            return [_give_back(command, state)]


def evolve(state: Account, event: LoyaltyEvent) -> Account:
    """What an account is after one more event."""
    match event:
        case PointsEarned():
            balance, earned = state.balance + event.points, state.earned + event.points
            return Account(balance, earned, state.tier, _without(state, event.checkout_id))
        case TierReached():
            return replace(state, tier=event.tier)
        case PointsRedeemed():
            held = {**state.held, event.checkout_id: event.points}
            return replace(state, balance=state.balance - event.points, held=held)
        case PointsGivenBack():
            return replace(state, balance=state.balance + event.points, held=_without(state, event.checkout_id))


loyalty = Decider(
    "loyalty",
    commands=LoyaltyCommand,
    events=LoyaltyEvent,
    state=Account,
    initial_state=Account(),
    decide=decide,
    evolve=evolve,
)


def _earn(command: EarnPoints, account: Account) -> list[LoyaltyEvent]:
    household = command.household_id
    if command.amount < 0:
        raise NegativeAmount(household_id=household, amount=command.amount)
    points = int(command.amount) * PER_DOLLAR[account.tier]
    found: list[LoyaltyEvent] = [
        PointsEarned(household_id=household, at=command.at, checkout_id=command.checkout_id, points=points)
    ]
    tier = max((tier for tier in Tier if FROM[tier] <= account.earned + points), key=FROM.__getitem__)
    if FROM[tier] > FROM[account.tier]:
        found.append(TierReached(household_id=household, at=command.at, tier=tier))
    return found


def _redeem(command: RedeemPoints, account: Account) -> PointsRedeemed:
    if command.checkout_id in account.held:
        raise AlreadyRedeemed(household_id=command.household_id, checkout_id=command.checkout_id)
    if not 0 < command.points <= account.balance:
        raise NotEnoughPoints(household_id=command.household_id, points=command.points, balance=account.balance)
    return PointsRedeemed(
        household_id=command.household_id, at=command.at, checkout_id=command.checkout_id, points=command.points
    )


def _give_back(command: GiveBackPoints, account: Account) -> PointsGivenBack:
    if command.checkout_id not in account.held:
        raise NothingRedeemed(household_id=command.household_id, checkout_id=command.checkout_id)
    points = account.held[command.checkout_id]
    return PointsGivenBack(
        household_id=command.household_id, at=command.at, checkout_id=command.checkout_id, points=points
    )


def _without(account: Account, checkout_id: str) -> Mapping[str, int]:
    return {checkout: points for checkout, points in account.held.items() if checkout != checkout_id}
