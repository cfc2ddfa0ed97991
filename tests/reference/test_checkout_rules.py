"""The checkout as a saga, path by path: what each input leads to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, Line
from events.inventory import StockReserved
from events.loyalty import PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import Cancel, Finished, Rejected, Timer
from leftfold.testing import check_redelivery, given
from services.baskets.commands import ConfirmPayment, NotWaitingForPayment, ReopenBasket
from services.checkout.process import PATIENCE, checkout, correlate
from services.checkout.progress import Input
from services.inventory.commands import NotReserved, OutOfStock, Release, Reserve, Ship
from services.loyalty.commands import EarnPoints, GiveBackPoints, NotEnoughPoints, NothingRedeemed, RedeemPoints
from services.payments.commands import AlreadyCaptured, Authorise, Capture, PaymentDeclined, PaymentVoid, Void

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)
LATER = AT + PATIENCE
DUE = Decimal("8.00")


def line(product: str, quantity: int = 2) -> Line:
    """A line of five dollars."""
    return Line(product_id=product, quantity=quantity, sales_value=Decimal("5.00"), retail_disc=Decimal("0.00"))


def receipt(*lines: Line, points: int = 0, method: Method = Method.CARD) -> BasketCheckedOut:
    """The first checkout of basket b, for ten dollars or so."""
    total = sum((one.sales_value for one in lines), Decimal("0.00"))
    return BasketCheckedOut(
        basket_id="b", at=AT, household_id="h", store_id="s", lines=lines, total=total, points=points, method=method
    )


def reserve(product: str) -> Reserve:
    """What is asked of the stock."""
    return Reserve(stock_id=f"s/{product}", at=AT, checkout_id="b/1", quantity=2)


def reserved(product: str) -> StockReserved:
    """What the stock answers."""
    return StockReserved(stock_id=f"s/{product}", at=AT, checkout_id="b/1", quantity=2, left=0)


def release(product: str, at: datetime = AT) -> Release:
    """What gives it back."""
    return Release(stock_id=f"s/{product}", at=at, checkout_id="b/1")


def reopen(reason: str, at: datetime = AT) -> ReopenBasket:
    """What undoes the checkout."""
    return ReopenBasket(basket_id="b", at=at, attempt=1, reason=reason)


def authorise(amount: Decimal = DUE) -> Authorise:
    """What is asked of payments."""
    return Authorise(payment_id="b/1", at=AT, household_id="h", amount=amount, method=Method.CARD)


out_of_stock = OutOfStock(stock_id="s/bread", wanted=2, left=0)
declined = PaymentDeclined(amount=DUE, method="card", most=Decimal("1.00"))
poor = NotEnoughPoints(household_id="h", points=200, balance=0)
redeem = RedeemPoints(household_id="h", at=AT, checkout_id="b/1", points=200)
redeemed = PointsRedeemed(household_id="h", at=AT, checkout_id="b/1", points=200)
authorised = PaymentAuthorised(payment_id="b/1", at=AT, household_id="h", amount=DUE, method=Method.CARD)
capture = Capture(payment_id="b/1", at=AT)
captured = PaymentCaptured(payment_id="b/1", at=AT, household_id="h", amount=DUE)
void = Void(payment_id="b/1", at=LATER, household_id="h", reason="not paid in time")
deadline = Timer(name="deadline", at=LATER, command=void)
voided = PaymentVoided(payment_id="b/1", at=LATER, household_id="h", amount=DUE, reason="not paid in time")
give_back = GiveBackPoints(household_id="h", at=AT, checkout_id="b/1")
earn = EarnPoints(household_id="h", at=AT, checkout_id="b/1", amount=DUE)
confirm = ConfirmPayment(basket_id="b", at=AT, attempt=1, payment_id="b/1", amount=DUE)
paid = BasketPaid(
    basket_id="b", at=AT, household_id="h", store_id="s", attempt=1, payment_id="b/1", amount=Decimal("8.00")
)
bought = receipt(line("milk"), line("bread"), points=200)
reopened = BasketReopened(
    basket_id="b",
    at=AT,
    household_id="h",
    store_id="s",
    lines=bought.lines,
    total=bought.total,
    attempt=1,
    checked_out_at=AT,
    reason="",
)
all_reserved = (bought, reserved("milk"), reserved("bread"))
asked = (*all_reserved, redeemed, authorised)


def test_each_line_that_has_units_is_reserved() -> None:
    given(checkout).when(receipt(line("milk"), line("bag", quantity=0), line("bread"))).then(
        deadline, reserve("milk"), reserve("bread")
    )


def test_a_receipt_of_the_end_of_all_time_has_its_deadline_there() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    last = Timer(name="deadline", at=end, command=void.model_copy(update={"at": end}))
    bought_then = receipt(line("milk")).model_copy(update={"at": end})
    given(checkout).when(bought_then).then(last, reserve("milk").model_copy(update={"at": end}))


def test_a_receipt_without_units_is_paid_all_the_same() -> None:
    given(checkout).when(receipt(line("coupon alone", quantity=0))).then(deadline, authorise(Decimal("5.00")))


def test_payment_waits_for_the_last_line() -> None:
    given(checkout, bought).when(reserved("milk")).then_nothing()
    given(checkout, bought, reserved("milk")).when(reserved("bread")).then(redeem)
    without = receipt(line("milk"), line("bread"))
    given(checkout, without, reserved("bread")).when(reserved("milk")).then(authorise(Decimal("10.00")))


def test_points_are_redeemed_before_the_rest_is_authorised() -> None:
    given(checkout, *all_reserved).when(redeemed).then(authorise())


def test_what_is_authorised_is_captured() -> None:
    given(checkout, *all_reserved, redeemed).when(authorised).then(capture)


def test_what_is_captured_pays_the_basket_and_what_is_paid_is_shipped_and_earns_points() -> None:
    ship = [Ship(stock_id=f"s/{product}", at=AT, checkout_id="b/1") for product in ("milk", "bread")]
    given(checkout, *asked).when(captured).then(Cancel("deadline"), confirm)
    given(checkout, *asked, captured).when(paid).then(*ship, earn, Finished())


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_line_that_is_not_there_undoes_the_others_once_all_have_answered(refused_first: bool) -> None:
    refused: Rejected[Reserve] = Rejected(reserve("bread"), out_of_stock)
    undone = (Cancel("deadline"), release("milk"), reopen("2 of s/bread are wanted and 0 are left"))
    if refused_first:
        given(checkout, bought).when(refused).then_nothing()
        given(checkout, bought, refused).when(reserved("milk")).then(*undone)
    else:
        given(checkout, bought, reserved("milk")).when(refused).then(*undone)


def test_when_nothing_is_there_the_first_reason_is_named() -> None:
    milk: Rejected[Reserve] = Rejected(reserve("milk"), OutOfStock(stock_id="s/milk", wanted=2, left=1))
    bread: Rejected[Reserve] = Rejected(reserve("bread"), out_of_stock)
    given(checkout, bought, milk).when(bread).then(Cancel("deadline"), reopen("2 of s/milk are wanted and 1 are left"))


def test_points_that_are_not_there_undo_the_checkout() -> None:
    refused: Rejected[RedeemPoints] = Rejected(redeem, poor)
    given(checkout, *all_reserved).when(refused).then(
        Cancel("deadline"), release("milk"), release("bread"), reopen(str(poor))
    )


def test_a_declined_payment_gives_back_stock_and_points() -> None:
    refused: Rejected[Authorise] = Rejected(authorise(), declined)
    given(checkout, *all_reserved, redeemed).when(refused).then(
        Cancel("deadline"), release("milk"), release("bread"), give_back, reopen(str(declined))
    )
    given(checkout, *all_reserved, redeemed, refused).when(reopened).then(Finished())


def test_a_void_payment_gives_back_stock_and_points() -> None:
    late = give_back.model_copy(update={"at": LATER})
    given(checkout, *asked).when(voided).then(
        Cancel("deadline"), release("milk", LATER), release("bread", LATER), late, reopen("not paid in time", LATER)
    )


void_before = PaymentVoided(
    payment_id="b/1", at=LATER, household_id="h", amount=Decimal("0.00"), reason="not paid in time"
)


def test_what_is_under_way_at_the_deadline_is_given_back_behind_its_answer() -> None:
    given(checkout, bought, reserved("milk")).when(void_before).then(
        Cancel("deadline"), release("milk", LATER), release("bread", LATER), reopen("not paid in time", LATER)
    )
    given(checkout, *all_reserved).when(void_before).then(
        Cancel("deadline"),
        release("milk", LATER),
        release("bread", LATER),
        give_back.model_copy(update={"at": LATER}),
        reopen("not paid in time", LATER),
    )


def test_a_line_that_was_refused_is_not_released_and_its_reason_is_named() -> None:
    milk: Rejected[Reserve] = Rejected(reserve("milk"), OutOfStock(stock_id="s/milk", wanted=2, left=1))
    given(checkout, bought, milk).when(void_before).then(
        Cancel("deadline"), release("bread", LATER), reopen("2 of s/milk are wanted and 1 are left", LATER)
    )


LATE: list[tuple[str, Input]] = [
    ("reserved", reserved("bread")),
    ("out of stock", Rejected(reserve("bread"), out_of_stock)),
    ("redeemed", redeemed),
    ("poor", Rejected(redeem, poor)),
    ("never authorised", Rejected(authorise(), PaymentVoid(payment_id="b/1"))),
    ("declined", Rejected(authorise(), declined)),
    ("never captured", Rejected(capture, PaymentVoid(payment_id="b/1"))),
    ("nothing to release", Rejected(release("bread"), NotReserved(stock_id="s/bread", checkout_id="b/1"))),
    ("no points to give back", Rejected(give_back, NothingRedeemed(household_id="h", checkout_id="b/1"))),
    ("open again", Rejected(reopen("not paid in time"), NotWaitingForPayment(basket_id="b", attempt=1))),
    ("void", void_before),
]


@pytest.mark.parametrize("late", [late for _, late in LATE], ids=[name for name, _ in LATE])
def test_an_answer_behind_the_deadline_leads_to_nothing_before_and_behind_the_end(late: Input) -> None:
    undone = (bought, reserved("milk"), void_before)
    given(checkout, *undone).when(late).then_nothing()
    given(checkout, *undone, reopened).when(late).then_nothing()
    given(checkout, *undone, late).when(reopened).then(Finished())


def test_the_later_one_of_capture_and_void_changes_nothing() -> None:
    given(checkout, *asked).when(Rejected(void, AlreadyCaptured(payment_id="b/1"))).then_nothing()
    given(checkout, *asked).when(Rejected(capture, PaymentVoid(payment_id="b/1"))).then_nothing()
    given(checkout, *asked, captured).when(Rejected(void, AlreadyCaptured(payment_id="b/1"))).then_nothing()


def test_a_payment_that_is_void_before_it_is_authorised_is_undone_once_by_the_void_itself() -> None:
    refused: Rejected[Authorise] = Rejected(authorise(), PaymentVoid(payment_id="b/1"))
    given(checkout, *all_reserved, redeemed).when(refused).then_nothing()


def test_a_receipt_that_was_paid_at_the_register_is_no_concern_of_it() -> None:
    assert correlate(receipt(line("milk"), method=Method.AT_REGISTER)) is None
    assert correlate(bought) == correlate(reserved("milk")) == correlate(authorised) == correlate(paid) == "b/1"


PATHS: list[Sequence[Input]] = [
    (*asked, captured, paid),
    (*asked, voided, reopened),
    (bought, reserved("milk"), void_before, reserved("bread"), reopened),
    (*all_reserved, void_before, Rejected(redeem, poor), reopened),
    (bought, Rejected(reserve("bread"), out_of_stock), reserved("milk"), reopened),
    (*all_reserved, Rejected(redeem, poor), reopened),
    (*all_reserved, redeemed, Rejected(authorise(), declined), reopened),
]


@pytest.mark.parametrize("path", PATHS, ids=["paid", "void", "late", "late points", "out of stock", "poor", "declined"])
def test_what_is_delivered_again_does_nothing(path: Sequence[Input]) -> None:
    check_redelivery(checkout, path)
