"""What a basket lets happen and what becomes of its receipts, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any

import pytest

from events.baskets import (
    BasketCheckedOut,
    BasketEvent,
    BasketOpened,
    BasketPaid,
    BasketReopened,
    CouponApplied,
    CouponReturned,
    ItemAdded,
    Line,
)
from events.payments import Method
from leftfold import ContractError, DomainError, Event, View
from leftfold.ports.message_codec import MessageCodec
from leftfold.testing import check_deciding_twice, check_interleavings, fold, given
from projections.basket_summary import basket_summary
from projections.household_spend import household_spend
from projections.product_sales import product_sales
from projections.store_totals import store_totals
from services.baskets.commands import (
    AddItem,
    AmountOutOfBounds,
    ApplyCoupon,
    BasketAlreadyOpen,
    BasketClosed,
    BasketCommand,
    BasketNotOpen,
    CheckOut,
    ConfirmPayment,
    CouponAlreadyApplied,
    EmptyBasket,
    NotWaitingForPayment,
    OpenBasket,
    ProductAlreadyAdded,
    QuantityOutOfBounds,
    ReopenBasket,
    TooManyPoints,
    UnknownLine,
    WrongAmount,
)
from services.baskets.domain import baskets
from services.baskets.history import history

AT = datetime(2017, 1, 1, 12, tzinfo=UTC)
NOTHING, CENT = Decimal("0.00"), Decimal("0.01")

open_basket = OpenBasket(basket_id="b", at=AT, household_id="h-7", store_id="s-1")
check_out = CheckOut(basket_id="b", at=AT)

opened = BasketOpened(basket_id="b", at=AT, household_id="h-7", store_id="s-1")
milk = ItemAdded(
    basket_id="b", at=AT, product_id="milk", quantity=2, sales_value=Decimal("3.98"), retail_disc=Decimal("0.40")
)
milk_coupon = CouponApplied(
    basket_id="b", at=AT, product_id="milk", coupon_disc=Decimal("1.00"), coupon_match_disc=Decimal("0.50")
)
receipt = BasketCheckedOut(
    basket_id="b",
    at=AT,
    household_id="h-7",
    store_id="s-1",
    lines=(
        Line(
            product_id="milk",
            quantity=2,
            sales_value=Decimal("3.98"),
            retail_disc=Decimal("0.40"),
            coupon_disc=Decimal("1.00"),
            coupon_match_disc=Decimal("0.50"),
        ),
    ),
    total=Decimal("3.98"),
)
closed = (opened, milk, milk_coupon, receipt)


def add(product_id: str = "milk", quantity: int = 2, sales_value: str = "3.98", retail_disc: str = "0.40") -> AddItem:
    """Asks for an item."""
    return AddItem(
        basket_id="b",
        at=AT,
        product_id=product_id,
        quantity=quantity,
        sales_value=Decimal(sales_value),
        retail_disc=Decimal(retail_disc),
    )


def coupon(amount: str = "1.00", match: str = "0.50") -> ApplyCoupon:
    """Hands in a coupon for milk."""
    return ApplyCoupon(
        basket_id="b", at=AT, product_id="milk", coupon_disc=Decimal(amount), coupon_match_disc=Decimal(match)
    )


def test_a_household_opens_a_basket() -> None:
    given(baskets).when(open_basket).then(opened)


def test_an_item_goes_into_an_open_basket() -> None:
    given(baskets, opened).when(add()).then(milk)


def test_a_coupon_is_put_on_a_line() -> None:
    given(baskets, opened, milk).when(coupon()).then(milk_coupon)


def test_a_checkout_turns_the_lines_into_a_receipt() -> None:
    given(baskets, opened, milk, milk_coupon).when(check_out).then(receipt)


def test_a_receipt_lists_its_lines_in_the_order_they_were_added() -> None:
    bread, eggs = (milk.model_copy(update={"product_id": name}) for name in ("bread", "eggs"))
    lines = tuple(
        Line(product_id=name, quantity=2, sales_value=Decimal("3.98"), retail_disc=Decimal("0.40"))
        for name in ("milk", "eggs", "bread")
    )
    total = Decimal("11.94")
    given(baskets, opened, milk, eggs, bread).when(check_out).then(
        BasketCheckedOut(basket_id="b", at=AT, household_id="h-7", store_id="s-1", lines=lines, total=total)
    )


@pytest.mark.parametrize("command", [add(), coupon(), check_out], ids=repr)
def test_nothing_goes_into_a_basket_that_was_never_opened(command: BasketCommand) -> None:
    given(baskets).when(command).then_rejected(BasketNotOpen(basket_id="b"))


@pytest.mark.parametrize("command", [open_basket, add("bread"), coupon(), check_out], ids=repr)
def test_nothing_happens_after_checkout(command: BasketCommand) -> None:
    given(baskets, *closed).when(command).then_rejected(BasketClosed(basket_id="b"))


def test_a_basket_is_opened_once() -> None:
    given(baskets, opened).when(open_basket).then_rejected(BasketAlreadyOpen(basket_id="b"))


def test_a_product_is_posted_once() -> None:
    given(baskets, opened, milk).when(add()).then_rejected(ProductAlreadyAdded(basket_id="b", product_id="milk"))


def test_a_coupon_needs_its_line() -> None:
    given(baskets, opened).when(coupon()).then_rejected(UnknownLine(basket_id="b", product_id="milk"))


def test_a_line_takes_one_coupon() -> None:
    given(baskets, opened, milk, milk_coupon).when(coupon("2.00")).then_rejected(
        CouponAlreadyApplied(basket_id="b", product_id="milk")
    )


def test_an_empty_basket_cannot_be_checked_out() -> None:
    given(baskets, opened).when(check_out).then_rejected(EmptyBasket(basket_id="b"))


@pytest.mark.parametrize(("quantity", "sales_value"), [(1, "0.00"), (100_000, "1000.00"), (0, "5.00")])
def test_a_believable_quantity_and_price_are_accepted(quantity: int, sales_value: str) -> None:
    event = milk.model_copy(update={"quantity": quantity, "sales_value": Decimal(sales_value)})
    given(baskets, opened).when(add(quantity=quantity, sales_value=sales_value)).then(event)


@pytest.mark.parametrize("quantity", [-1, 100_001])
def test_an_unbelievable_quantity_is_refused(quantity: int) -> None:
    given(baskets, opened).when(add(quantity=quantity)).then_rejected(
        QuantityOutOfBounds(product_id="milk", quantity=quantity, least=0, most=100_000)
    )


def test_nothing_is_sold_without_units() -> None:
    given(baskets, opened).when(add(quantity=0, sales_value="5.01")).then_rejected(
        QuantityOutOfBounds(product_id="milk", quantity=0, least=1, most=100_000)
    )


@pytest.mark.parametrize(
    ("command", "amount", "least"),
    [
        (add(sales_value="-0.01"), "-0.01", NOTHING),
        (add(sales_value="1000.01"), "1000.01", NOTHING),
        (add(retail_disc="-0.01"), "-0.01", NOTHING),
        (add(retail_disc="1000.01"), "1000.01", NOTHING),
        (coupon("0.00"), "0.00", CENT),
        (coupon("1000.01"), "1000.01", CENT),
        (coupon(match="-0.01"), "-0.01", NOTHING),
        (add(sales_value="1.004"), "1.004", NOTHING),
        (coupon("0.015"), "0.015", CENT),
    ],
    ids=repr,
)
def test_an_unbelievable_amount_is_refused(command: BasketCommand, amount: str, least: Decimal) -> None:
    history: tuple[BasketEvent, ...] = (opened, milk) if isinstance(command, ApplyCoupon) else (opened,)
    error: DomainError = AmountOutOfBounds(
        product_id="milk", amount=Decimal(amount), least=least, most=Decimal("1000.00")
    )
    given(baskets, *history).when(command).then_rejected(error)


def test_every_command_of_a_real_day_is_refused_the_second_time() -> None:
    state = baskets.initial_state
    for _, command in islice(history(weeks=[1]), 1500):
        state = baskets.initial_state if isinstance(command, OpenBasket) else state
        state = baskets.fold(state, baskets.decide(command, state))
        with pytest.raises(DomainError):
            baskets.decide(command, state)


def test_every_command_of_a_real_day_is_decided_alike_from_a_stored_state() -> None:
    check_deciding_twice(baskets, (command for _, command in islice(history(weeks=[1]), 1500)))


LATER = AT + timedelta(minutes=15)
by_card = CheckOut(basket_id="b", at=AT, method=Method.CARD)
unpaid = receipt.model_copy(update={"method": Method.CARD})
checked_out = (opened, milk, milk_coupon, unpaid)
confirm = ConfirmPayment(basket_id="b", at=LATER, attempt=1, payment_id="b/1", amount=Decimal("2.98"))
reopen = ReopenBasket(basket_id="b", at=LATER, attempt=1, reason="declined")
paid = BasketPaid(
    basket_id="b", at=LATER, household_id="h-7", store_id="s-1", attempt=1, payment_id="b/1", amount=Decimal("2.98")
)
reopened = BasketReopened(
    basket_id="b",
    at=LATER,
    household_id="h-7",
    store_id="s-1",
    lines=unpaid.lines,
    total=unpaid.total,
    attempt=1,
    checked_out_at=AT,
    reason="declined",
)
returned = CouponReturned(
    basket_id="b", at=LATER, product_id="milk", coupon_disc=Decimal("1.00"), coupon_match_disc=Decimal("0.50")
)


def test_a_household_owes_what_coupons_and_points_do_not_pay() -> None:
    assert unpaid.due == Decimal("2.98")
    assert unpaid.model_copy(update={"points": 98}).due == Decimal("2.00")
    generous = unpaid.model_copy(update={"total": Decimal("0.50")})
    assert generous.due == Decimal("0.00"), "a coupon may exceed its line"


def test_what_is_due_is_paid() -> None:
    given(baskets, opened, milk, milk_coupon).when(by_card).then(unpaid)
    given(baskets, *checked_out).when(confirm).then(paid)
    more = confirm.model_copy(update={"amount": Decimal("3.98")})
    given(baskets, *checked_out).when(more).then_rejected(
        WrongAmount(basket_id="b", amount=Decimal("3.98"), due=Decimal("2.98"))
    )


def test_a_receipt_that_comes_to_nothing_opens_the_basket_and_returns_its_coupons() -> None:
    given(baskets, *checked_out).when(reopen).then(reopened, returned)
    again = (*checked_out, reopened, returned)
    given(baskets, *again).when(coupon()).then(milk_coupon)
    plain = replace(unpaid.lines[0], coupon_disc=NOTHING, coupon_match_disc=NOTHING)
    given(baskets, *again).when(check_out).then(receipt.model_copy(update={"attempt": 2, "lines": (plain,)}))


@pytest.mark.parametrize("command", [confirm, reopen], ids=repr)
@pytest.mark.parametrize(
    "history",
    [
        (),
        (opened, milk),
        (opened, milk, milk_coupon, receipt),
        (*checked_out, paid),
        (*checked_out, reopened, returned),
        (*checked_out, reopened, returned, unpaid.model_copy(update={"attempt": 2})),
    ],
    ids=["unopened", "open", "register", "paid", "reopened", "checked out again"],
)
def test_a_checkout_is_paid_or_undone_once_and_only_the_last_one(
    history: Sequence[BasketEvent], command: ConfirmPayment | ReopenBasket
) -> None:
    given(baskets, *history).when(command).then_rejected(NotWaitingForPayment(basket_id="b", attempt=1))


def test_nothing_goes_into_a_basket_that_is_paid() -> None:
    for command in (add("eggs"), open_basket, by_card):
        given(baskets, *checked_out, paid).when(command).then_rejected(BasketClosed(basket_id="b"))


@pytest.mark.parametrize(("points", "method", "most"), [(299, Method.CARD, 298), (-1, Method.CARD, 298)])
def test_points_pay_for_what_is_due_at_most(points: int, method: Method, most: int) -> None:
    asked = CheckOut(basket_id="b", at=AT, method=method, points=points)
    error = TooManyPoints(basket_id="b", points=points, most=most)
    given(baskets, opened, milk, milk_coupon).when(asked).then_rejected(error)
    all_of_it = asked.model_copy(update={"points": 298})
    given(baskets, opened, milk, milk_coupon).when(all_of_it).then(unpaid.model_copy(update={"points": 298}))


def test_no_customer_pays_with_points_at_a_register() -> None:
    asked = CheckOut(basket_id="b", at=AT, points=1)
    given(baskets, opened, milk).when(asked).then_rejected(TooManyPoints(basket_id="b", points=1, most=0))


def test_a_basket_is_decided_alike_from_a_stored_state() -> None:
    second = confirm.model_copy(update={"attempt": 2, "amount": Decimal("3.98")})
    check_deciding_twice(baskets, [open_basket, add(), coupon(), by_card, reopen, by_card, second])


@pytest.mark.parametrize("view", [household_spend, product_sales, store_totals], ids=repr)
def test_views_forget_what_a_void_receipt_added(view: View[Any, Any]) -> None:
    other = unpaid.model_copy(update={"basket_id": "c"})
    assert fold(view, unpaid, other, reopened) == fold(view, other)
    check_interleavings(view, [unpaid, reopened, unpaid.model_copy(update={"attempt": 2})], [other])


def test_a_summary_follows_its_basket_back_and_forth() -> None:
    row = fold(basket_summary, *checked_out)["b"]
    assert (row.checked_out_at, row.due, row.paid_at) == (AT, Decimal("2.98"), None)
    row = fold(basket_summary, *checked_out, reopened, returned)["b"]
    assert (row.checked_out_at, row.due, row.coupons) == (None, Decimal("3.98"), Decimal("0.00"))
    assert fold(basket_summary, *checked_out, paid)["b"].paid_at == LATER


V1 = b"""{"basket_id": "b", "at": "2016-12-24T18:00:00Z", "household_id": "h-7", "store_id": "s-1", "lines": [
    {"product_id": "milk", "quantity": 2, "sales_value": "3.98", "retail_disc": "0.40", "coupon_disc": "1.00"},
    {"product_id": "bread", "quantity": 1, "sales_value": "2.02", "retail_disc": "0.00", "coupon_disc": "0.00"}]}"""

TODAY = BasketCheckedOut(
    basket_id="b",
    at=datetime(2016, 12, 24, 18, tzinfo=UTC),
    household_id="h-7",
    store_id="s-1",
    lines=(
        Line(
            product_id="milk",
            quantity=2,
            sales_value=Decimal("3.98"),
            retail_disc=Decimal("0.40"),
            coupon_disc=Decimal("1.00"),
        ),
        Line(product_id="bread", quantity=1, sales_value=Decimal("2.02"), retail_disc=Decimal("0.00")),
    ),
    total=Decimal("6.00"),
)

versions: MessageCodec[Event] = MessageCodec([BasketCheckedOut])


def test_receipts_of_every_version_read_as_receipts_of_today_and_those_of_tomorrow_not_at_all() -> None:
    assert versions.decode(b"baskets.BasketCheckedOut.v1", V1) == TODAY
    assert versions.decode(b"baskets.BasketCheckedOut.v2", versions.encode(TODAY)) == TODAY
    with pytest.raises(ContractError, match="version 3"):
        versions.decode(b"baskets.BasketCheckedOut.v3", versions.encode(TODAY))
    with pytest.raises(ContractError):
        versions.decode(b"baskets.BasketCheckedOut.v1", V1.replace(b'"lines"', b'"rows"'))
