"""What may be asked of a household's points, and the rules that may say no."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from leftfold import Command, DomainError

__all__ = [
    "AlreadyRedeemed",
    "EarnPoints",
    "GiveBackPoints",
    "LoyaltyCommand",
    "NegativeAmount",
    "NotEnoughPoints",
    "NothingRedeemed",
    "RedeemPoints",
]


class NotEnoughPoints(DomainError, message="household {household_id} has {balance} points, not {points}"):
    """A household pays with points that it has, at least one."""

    household_id: str
    points: int
    balance: int


class NegativeAmount(DomainError, message="household {household_id} cannot have paid ${amount}"):
    """Points are earned for what was paid, and that is at least 0."""

    household_id: str
    amount: Decimal


class AlreadyRedeemed(DomainError, message="checkout {checkout_id} has redeemed points of {household_id} before"):
    """A checkout redeems points once."""

    household_id: str
    checkout_id: str


class NothingRedeemed(DomainError, message="checkout {checkout_id} holds no points of household {household_id}"):
    """Only what a checkout has redeemed and not yet paid for good is given back."""

    household_id: str
    checkout_id: str


class _LoyaltyCommand(Command, category="loyalty", key="household_id"):
    household_id: str
    at: datetime
    checkout_id: str


class EarnPoints(_LoyaltyCommand, rejects=(NegativeAmount,)):
    """Give the household its points for a checkout that is paid; what it redeemed there is spent for good."""

    amount: Decimal


class RedeemPoints(_LoyaltyCommand, rejects=(NotEnoughPoints, AlreadyRedeemed)):
    """Pay part of a checkout with points."""

    points: int


class GiveBackPoints(_LoyaltyCommand, rejects=(NothingRedeemed,)):
    """Undo what a checkout has redeemed."""


LoyaltyCommand = EarnPoints | RedeemPoints | GiveBackPoints
