"""The rules of a payment: authorised within a limit, then captured or void, never both; what was taken may go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum

from events.payments import (
    CaptureRequested,
    Method,
    PaymentAuthorised,
    PaymentCaptured,
    PaymentEvent,
    PaymentRefunded,
    PaymentVoided,
)
from leftfold import Decider
from services.payments.commands import (
    AlreadyAuthorised,
    AlreadyCaptured,
    Authorise,
    Capture,
    Clear,
    NotAuthorised,
    NotCaptured,
    NotRequested,
    PaymentCommand,
    PaymentDeclined,
    PaymentVoid,
    Refund,
    Void,
)

__all__ = ["MOST", "Payment", "Stage", "decide", "evolve", "payments"]

MOST = {Method.CARD: Decimal("500.00"), Method.CHECK: Decimal("150.00"), Method.AT_REGISTER: Decimal("0.00")}
"""What a method is good for; what is paid at the register never comes here."""


class Stage(Enum):
    """How far a payment has come."""

    NEW = "new"
    AUTHORISED = "authorised"
    REQUESTED = "requested"
    CAPTURED = "captured"
    VOID = "void"
    REFUNDED = "refunded"


@dataclass(frozen=True)
class Payment:
    """What the rules must remember of a payment."""

    stage: Stage = Stage.NEW
    household_id: str = ""
    amount: Decimal = Decimal("0.00")
    method: Method = Method.CARD


def decide(command: PaymentCommand, state: Payment) -> Sequence[PaymentEvent]:
    """What happens when this is asked of a payment in this state.

    Raises:
        DomainError: a rule says no; each command lists its own in `rejects`.
    """
    match command:
        case Authorise():
            return [_authorise(command, state)]
        case Capture():
            payment = _open(command, state)
            if payment.stage is Stage.REQUESTED:
                return []
            return [_taken(command, payment) if payment.method is Method.CARD else _requested(command, payment)]
        case Clear():
            payment = _open(command, state)
            if payment.stage is not Stage.REQUESTED:
                raise NotRequested(payment_id=command.payment_id)
            return [_taken(command, payment)]
        case Void():
            return [_void(command, state)]
        case Refund():
            return [_refund(command, state)]


def evolve(state: Payment, event: PaymentEvent) -> Payment:
    """What a payment is after one more event."""
    match event:
        case PaymentAuthorised():
            return Payment(Stage.AUTHORISED, event.household_id, event.amount, event.method)
        case CaptureRequested():
            return replace(state, stage=Stage.REQUESTED)
        case PaymentCaptured():
            return replace(state, stage=Stage.CAPTURED)
        case PaymentVoided():
            return replace(state, stage=Stage.VOID)
        case PaymentRefunded():
            return replace(state, stage=Stage.REFUNDED)


payments = Decider(
    "payments",
    commands=PaymentCommand,
    events=PaymentEvent,
    state=Payment,
    initial_state=Payment(),
    decide=decide,
    evolve=evolve,
)


def _authorise(command: Authorise, payment: Payment) -> PaymentAuthorised:
    if payment.stage is Stage.VOID:
        raise PaymentVoid(payment_id=command.payment_id)
    if payment.stage is not Stage.NEW:
        raise AlreadyAuthorised(payment_id=command.payment_id)
    most = MOST[command.method]
    if not 0 <= command.amount <= most:
        raise PaymentDeclined(amount=command.amount, method=command.method.value, most=most)
    return PaymentAuthorised(
        payment_id=command.payment_id,
        at=command.at,
        household_id=command.household_id,
        amount=command.amount,
        method=command.method,
    )


def _open(command: PaymentCommand, payment: Payment) -> Payment:
    """The payment, if its money may still be taken or left."""
    match payment.stage:
        case Stage.NEW:
            raise NotAuthorised(payment_id=command.payment_id)
        case Stage.CAPTURED | Stage.REFUNDED:
            raise AlreadyCaptured(payment_id=command.payment_id)
        case Stage.VOID:
            raise PaymentVoid(payment_id=command.payment_id)
        case Stage.AUTHORISED | Stage.REQUESTED:
            return payment


def _taken(command: Capture | Clear, payment: Payment) -> PaymentCaptured:
    return PaymentCaptured(
        payment_id=command.payment_id, at=command.at, household_id=payment.household_id, amount=payment.amount
    )


def _requested(command: Capture, payment: Payment) -> CaptureRequested:
    return CaptureRequested(
        payment_id=command.payment_id, at=command.at, household_id=payment.household_id, amount=payment.amount
    )


def _void(command: Void, payment: Payment) -> PaymentVoided:
    if payment.stage is not Stage.NEW or not command.household_id:
        payment = _open(command, payment)
    return PaymentVoided(
        payment_id=command.payment_id,
        at=command.at,
        household_id=payment.household_id or command.household_id,
        amount=payment.amount,
        reason=command.reason,
    )


def _refund(command: Refund, payment: Payment) -> PaymentRefunded:
    if payment.stage is not Stage.CAPTURED:
        raise NotCaptured(payment_id=command.payment_id)
    return PaymentRefunded(
        payment_id=command.payment_id,
        at=command.at,
        household_id=payment.household_id,
        amount=payment.amount,
        reason=command.reason,
    )
