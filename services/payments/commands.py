"""What may be asked of a payment, and the rules that may say no."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from events.payments import Method
from leftfold import Command, DomainError

__all__ = [
    "AlreadyAuthorised",
    "AlreadyCaptured",
    "Authorise",
    "Capture",
    "Clear",
    "NotAuthorised",
    "NotCaptured",
    "NotRequested",
    "PaymentCommand",
    "PaymentDeclined",
    "PaymentVoid",
    "Refund",
    "Void",
]


class PaymentDeclined(DomainError, message="${amount} by {method} is declined: not within $0.00 to ${most}"):
    """Each method has its limit, and no amount is below 0."""

    amount: Decimal
    method: str
    most: Decimal


class AlreadyAuthorised(DomainError, message="payment {payment_id} was asked for before"):
    """A payment is authorised once."""

    payment_id: str


class NotAuthorised(DomainError, message="payment {payment_id} was never authorised"):
    """Nothing is taken or voided that was not authorised."""

    payment_id: str


class AlreadyCaptured(DomainError, message="payment {payment_id} is captured"):
    """Money is taken once, and what is taken is not void."""

    payment_id: str


class NotCaptured(DomainError, message="there is no money of payment {payment_id} to give back"):
    """What was taken is given back, once."""

    payment_id: str


class PaymentVoid(DomainError, message="payment {payment_id} is void"):
    """Nothing is authorised or taken for a payment that is void."""

    payment_id: str


class NotRequested(DomainError, message="no bank was asked for payment {payment_id}"):
    """A bank clears what it was asked for."""

    payment_id: str


class _PaymentCommand(Command, category="payments", key="payment_id"):
    payment_id: str
    at: datetime


class Authorise(_PaymentCommand, rejects=(PaymentDeclined, AlreadyAuthorised, PaymentVoid)):
    """May the household pay so much this way?"""

    household_id: str
    amount: Decimal
    method: Method


class Capture(_PaymentCommand, rejects=(NotAuthorised, AlreadyCaptured, PaymentVoid)):
    """Take the money: from a card at once, for a check by asking its bank."""


class Clear(_PaymentCommand, rejects=(NotAuthorised, NotRequested, AlreadyCaptured, PaymentVoid)):
    """The bank says that the money of a check is there."""


class Void(_PaymentCommand, rejects=(NotAuthorised, AlreadyCaptured, PaymentVoid)):
    """Never take the money; with a household, not even where no checkout has asked yet, and asking is too late then."""

    reason: str
    household_id: str = ""


class Refund(_PaymentCommand, rejects=(NotCaptured,)):
    """Give the money back."""

    reason: str


PaymentCommand = Authorise | Capture | Clear | Void | Refund
