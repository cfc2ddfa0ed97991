"""What becomes of a receipt, rule by rule; the views forget what came to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from events.baskets import BasketCheckedOut, BasketEvent, BasketPaid, BasketReopened, CouponReturned
from events.payments import Method
from leftfold import View
from leftfold.testing import check_deciding_twice, check_interleavings, fold, given
from projections.basket_summary import basket_summary
from projections.household_spend import household_spend
from projections.product_sales import product_sales
from projections.store_totals import store_totals
from services.baskets.commands import (
    AddItem,
    BasketClosed,
    CheckOut,
    ConfirmPayment,
    NotWaitingForPayment,
    OpenBasket,
    ReopenBasket,
    TooManyPoints,
    WrongAmount,
)
from services.baskets.domain import baskets
from tests.reference.test_basket_rules import AT, check_out, coupon, milk, milk_coupon, opened
from tests.reference.test_basket_rules import receipt as at_register

LATER = AT + timedelta(minutes=15)
by_card = CheckOut(basket_id="b", at=AT, method=Method.CARD)
receipt = at_register.model_copy(update={"method": Method.CARD})
closed = (opened, milk, milk_coupon, receipt)
confirm = ConfirmPayment(basket_id="b", at=LATER, attempt=1, payment_id="b/1", amount=Decimal("2.98"))
reopen = ReopenBasket(basket_id="b", at=LATER, attempt=1, reason="declined")
paid = BasketPaid(
    basket_id="b",
    at=LATER,
    household_id="h-7",
    store_id="s-1",
    attempt=1,
    payment_id="b/1",
    amount=Decimal("2.98"),
)
reopened = BasketReopened(
    basket_id="b",
    at=LATER,
    household_id="h-7",
    store_id="s-1",
    lines=receipt.lines,
    total=receipt.total,
    attempt=1,
    checked_out_at=AT,
    reason="declined",
)
returned = CouponReturned(
    basket_id="b", at=LATER, product_id="milk", coupon_disc=Decimal("1.00"), coupon_match_disc=Decimal("0.50")
)


def test_a_household_owes_what_coupons_and_points_do_not_pay() -> None:
    assert receipt.due == Decimal("2.98")
    assert receipt.model_copy(update={"points": 98}).due == Decimal("2.00")
    generous = receipt.model_copy(update={"total": Decimal("0.50")})
    assert generous.due == Decimal("0.00"), "a coupon may exceed its line"


def test_what_is_due_is_paid() -> None:
    given(baskets, opened, milk, milk_coupon).when(by_card).then(receipt)
    given(baskets, *closed).when(confirm).then(paid)
    more = confirm.model_copy(update={"amount": Decimal("3.98")})
    given(baskets, *closed).when(more).then_rejected(
        WrongAmount(basket_id="b", amount=Decimal("3.98"), due=Decimal("2.98"))
    )


def test_a_receipt_that_comes_to_nothing_opens_the_basket_and_returns_its_coupons() -> None:
    given(baskets, *closed).when(reopen).then(reopened, returned)
    again = (*closed, reopened, returned)
    given(baskets, *again).when(coupon()).then(milk_coupon)
    second = receipt.model_copy(
        update={"attempt": 2, "lines": (_plain(receipt),), "at": AT, "method": Method.AT_REGISTER}
    )
    given(baskets, *again).when(check_out).then(second)


def _plain(event: BasketCheckedOut) -> Any:
    nothing = Decimal("0.00")
    return replace(event.lines[0], coupon_disc=nothing, coupon_match_disc=nothing)


@pytest.mark.parametrize("command", [confirm, reopen], ids=repr)
@pytest.mark.parametrize(
    "history",
    [
        (),
        (opened, milk),
        (opened, milk, milk_coupon, at_register),
        (*closed, paid),
        (*closed, reopened, returned),
        (*closed, reopened, returned, receipt.model_copy(update={"attempt": 2})),
    ],
    ids=["unopened", "open", "register", "paid", "reopened", "checked out again"],
)
def test_a_checkout_is_paid_or_undone_once_and_only_the_last_one(
    history: Sequence[BasketEvent], command: ConfirmPayment | ReopenBasket
) -> None:
    given(baskets, *history).when(command).then_rejected(NotWaitingForPayment(basket_id="b", attempt=1))


def test_nothing_goes_into_a_basket_that_is_paid() -> None:
    item = AddItem(basket_id="b", at=AT, product_id="eggs", quantity=1, sales_value=Decimal(1))
    again = OpenBasket(basket_id="b", at=AT, household_id="h-7", store_id="s-1")
    for command in (item, again, by_card):
        given(baskets, *closed, paid).when(command).then_rejected(BasketClosed(basket_id="b"))


@pytest.mark.parametrize(("points", "method", "most"), [(299, Method.CARD, 298), (-1, Method.CARD, 298)])
def test_points_pay_for_what_is_due_at_most(points: int, method: Method, most: int) -> None:
    asked = CheckOut(basket_id="b", at=AT, method=method, points=points)
    error = TooManyPoints(basket_id="b", points=points, most=most)
    given(baskets, opened, milk, milk_coupon).when(asked).then_rejected(error)
    all_of_it = asked.model_copy(update={"points": 298})
    given(baskets, opened, milk, milk_coupon).when(all_of_it).then(receipt.model_copy(update={"points": 298}))


def test_nobody_pays_with_points_at_a_register() -> None:
    asked = CheckOut(basket_id="b", at=AT, points=1)
    given(baskets, opened, milk).when(asked).then_rejected(TooManyPoints(basket_id="b", points=1, most=0))


def test_a_basket_is_decided_alike_from_a_stored_state() -> None:
    commands = [
        OpenBasket(basket_id="b", at=AT, household_id="h-7", store_id="s-1"),
        AddItem(basket_id="b", at=AT, product_id="milk", quantity=2, sales_value=Decimal("3.98")),
        coupon(),
        by_card,
        reopen,
        by_card,
        confirm.model_copy(update={"attempt": 2, "amount": Decimal("3.98")}),
    ]
    check_deciding_twice(baskets, commands)


@pytest.mark.parametrize("view", [household_spend, product_sales, store_totals], ids=repr)
def test_views_forget_what_a_void_receipt_added(view: View[Any, Any]) -> None:
    other = receipt.model_copy(update={"basket_id": "c"})
    assert fold(view, receipt, other, reopened) == fold(view, other)
    check_interleavings(view, [receipt, reopened, receipt.model_copy(update={"attempt": 2})], [other])


def test_a_summary_follows_its_basket_back_and_forth() -> None:
    row = fold(basket_summary, *closed)["b"]
    assert (row.checked_out_at, row.due, row.paid_at) == (AT, Decimal("2.98"), None)
    row = fold(basket_summary, *closed, reopened, returned)["b"]
    assert (row.checked_out_at, row.due, row.coupons) == (None, Decimal("3.98"), Decimal("0.00"))
    assert fold(basket_summary, *closed, paid)["b"].paid_at == LATER
