"""What happens to a payment. Names and fields are the storage format: add a field or a version, never change one."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import Enum

from leftfold import Event

__all__ = [
    "CaptureRequested",
    "Method",
    "PaymentAuthorised",
    "PaymentCaptured",
    "PaymentEvent",
    "PaymentRefunded",
    "PaymentVoided",
]


class Method(Enum):
    """How a household pays: a card is charged at once, a check is cleared by a bank, which takes its time.

    A receipt that is paid at the register is paid when it is printed; no service has anything to do with it.
    """

    AT_REGISTER = "register"
    CARD = "card"
    CHECK = "check"


class _PaymentEvent(Event, category="payments", key="payment_id"):
    payment_id: str
    at: datetime
    household_id: str
    amount: Decimal


class PaymentAuthorised(_PaymentEvent):
    """The household may pay this much this way; nothing has been taken yet."""

    method: Method


class CaptureRequested(_PaymentEvent):
    """A bank was asked for the money of a check."""


class PaymentCaptured(_PaymentEvent):
    """The chain has the money."""


class PaymentVoided(_PaymentEvent):
    """The chain will never take this money; the amount is zero where no checkout had asked for it yet."""

    reason: str


class PaymentRefunded(_PaymentEvent):
    """The household has its money again."""

    reason: str


PaymentEvent = PaymentAuthorised | CaptureRequested | PaymentCaptured | PaymentVoided | PaymentRefunded
"""The payments service: from an authorisation to the money, or to none."""
