"""What a payment lets happen, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from events.payments import (
    CaptureRequested,
    Method,
    PaymentAuthorised,
    PaymentCaptured,
    PaymentEvent,
    PaymentRefunded,
    PaymentVoided,
)
from leftfold import DomainError
from leftfold.testing import check_deciding_twice, given
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
from services.payments.domain import payments

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)
TEN = Decimal("10.00")

capture, clear = Capture(payment_id="p", at=AT), Clear(payment_id="p", at=AT)
void = Void(payment_id="p", at=AT, reason="no answer")
requested = CaptureRequested(payment_id="p", at=AT, household_id="h", amount=TEN)
captured = PaymentCaptured(payment_id="p", at=AT, household_id="h", amount=TEN)
voided = PaymentVoided(payment_id="p", at=AT, household_id="h", amount=TEN, reason="no answer")
refund = Refund(payment_id="p", at=AT, reason="reopened")
refunded = PaymentRefunded(payment_id="p", at=AT, household_id="h", amount=TEN, reason="reopened")


def ask(amount: str = "10.00", method: Method = Method.CARD) -> Authorise:
    """May h pay this?"""
    return Authorise(payment_id="p", at=AT, household_id="h", amount=Decimal(amount), method=method)


def allowed(amount: str = "10.00", method: Method = Method.CARD) -> PaymentAuthorised:
    """Yes, h may."""
    return PaymentAuthorised(payment_id="p", at=AT, household_id="h", amount=Decimal(amount), method=method)


by_card, by_check = allowed(), allowed(method=Method.CHECK)


@pytest.mark.parametrize(("method", "most"), [(Method.CARD, "500.00"), (Method.CHECK, "150.00")])
def test_each_method_is_good_for_so_much(method: Method, most: str) -> None:
    given(payments).when(ask(most, method)).then(allowed(most, method))
    more = Decimal(most) + Decimal("0.01")
    declined = PaymentDeclined(amount=more, method=method.value, most=Decimal(most))
    given(payments).when(ask(str(more), method)).then_rejected(declined)


def test_what_was_declined_may_be_asked_for_in_another_way() -> None:
    given(payments).when(ask("0.00")).then(allowed("0.00"))
    given(payments, by_card).when(ask()).then_rejected(AlreadyAuthorised(payment_id="p"))


def test_a_card_is_charged_at_once() -> None:
    given(payments, by_card).when(capture).then(captured)


def test_a_check_is_cleared_by_its_bank() -> None:
    given(payments, by_check).when(capture).then(requested)
    given(payments, by_check, requested).when(capture).then_nothing()
    given(payments, by_check, requested).when(clear).then(captured)
    given(payments, by_check).when(clear).then_rejected(NotRequested(payment_id="p"))
    given(payments, by_card).when(clear).then_rejected(NotRequested(payment_id="p"))


@pytest.mark.parametrize("history", [(by_card,), (by_check, requested)], ids=["authorised", "requested"])
def test_what_was_not_taken_can_be_void(history: tuple[PaymentEvent, ...]) -> None:
    given(payments, *history).when(void).then(voided)


def test_what_nobody_asked_for_yet_can_be_void_for_a_household_and_is_never_authorised_then() -> None:
    early = void.model_copy(update={"household_id": "h"})
    never = voided.model_copy(update={"amount": Decimal("0.00")})
    given(payments).when(early).then(never)
    given(payments, never).when(ask()).then_rejected(PaymentVoid(payment_id="p"))
    given(payments, never).when(early).then_rejected(PaymentVoid(payment_id="p"))
    given(payments, by_card).when(early).then(voided)
    given(payments, by_card, captured).when(early).then_rejected(AlreadyCaptured(payment_id="p"))


@pytest.mark.parametrize("command", [capture, clear, void], ids=repr)
@pytest.mark.parametrize(
    ("history", "error"),
    [
        ((), NotAuthorised(payment_id="p")),
        ((by_card, captured, refunded), AlreadyCaptured(payment_id="p")),
        ((by_card, captured), AlreadyCaptured(payment_id="p")),
        ((by_check, requested, voided), PaymentVoid(payment_id="p")),
    ],
    ids=["unknown", "refunded", "captured", "void"],
)
def test_money_is_taken_once_or_never(
    command: PaymentCommand, history: tuple[PaymentEvent, ...], error: DomainError
) -> None:
    given(payments, *history).when(command).then_rejected(error)


def test_what_was_taken_is_given_back_once_and_nothing_else_is() -> None:
    given(payments, by_card, captured).when(refund).then(refunded)
    given(payments, by_check, requested, captured).when(refund).then(refunded)
    for history in ((), (by_card,), (by_check, requested), (by_check, voided), (by_card, captured, refunded)):
        given(payments, *history).when(refund).then_rejected(NotCaptured(payment_id="p"))


def test_a_payment_is_decided_alike_from_a_stored_state() -> None:
    check_deciding_twice(payments, [ask(method=Method.CHECK), capture, clear, void, refund])
