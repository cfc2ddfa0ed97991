"""An operator does what a checkout does: all the same it ends, and all services agree."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from events.baskets import BasketPaid, BasketReopened
from events.inventory import StockReserved, StockShipped
from events.loyalty import PointsEarned
from events.payments import Method, PaymentCaptured, PaymentRefunded, PaymentVoided
from leftfold import App, Cancel, Finished, Rejected, World
from leftfold.testing import check_redelivery, fold, given
from projections.household_360 import household_360
from projections.order_journey import What, order_journey
from services.baskets.commands import CheckOut, ConfirmPayment, NotWaitingForPayment, ReopenBasket, WrongAmount
from services.checkout.process import PATIENCE, checkout
from services.checkout.progress import Input
from services.inventory.commands import Ship
from services.payments.commands import AlreadyCaptured, Clear, Refund, Void
from tests.reference import careless
from tests.reference.chain import AT, chain, of, shop
from tests.reference.test_checkout_rules import (
    LATER,
    asked,
    bought,
    captured,
    confirm,
    earn,
    give_back,
    paid,
    release,
    reopen,
    reopened,
    reserved,
    void,
    void_before,
    voided,
)
from tests.reference.test_outages import begin, wrong
from tests.reference.test_sums_agree import reported

undone = reopened.model_copy(update={"at": LATER, "reason": "the cashier undid it"})
void_now = void.model_copy(update={"reason": "the cashier undid it"})
refund = Refund(payment_id="b/1", at=AT, reason="the cashier undid it")
manual = ReopenBasket(basket_id="b", at=AT, attempt=1, reason="the cashier undid it")
early = Void(payment_id="b/1", at=AT, household_id="h", reason="changed their mind")
clear = Clear(payment_id="b/1", at=AT)
refused: Rejected[ConfirmPayment] = Rejected(confirm, NotWaitingForPayment(basket_id="b", attempt=1))
late: Rejected[ReopenBasket] = Rejected(manual, NotWaitingForPayment(basket_id="b", attempt=1))
back = (release("milk"), release("bread"), give_back)


def test_a_basket_that_an_operator_reopens_has_its_payment_made_void() -> None:
    for path in ((bought,), (bought, reserved("milk")), asked):
        given(checkout, *path).when(undone).then(void_now)
    latest = [one.model_copy(update={"at": LATER}) for one in back]
    given(checkout, *asked, undone).when(voided).then(Cancel("deadline"), *latest, Finished())
    given(checkout, *asked, undone).when(Rejected(void_now, AlreadyCaptured(payment_id="b/1"))).then_nothing()


def test_money_that_was_taken_for_a_basket_that_an_operator_reopened_goes_back() -> None:
    given(checkout, *asked, undone).when(captured).then(Cancel("deadline"), *back, refund, Finished())


def test_a_payment_that_baskets_refuse_waits_for_what_they_tell() -> None:
    soon = reopened.model_copy(update={"reason": "the cashier undid it"})
    given(checkout, *asked, captured).when(refused).then_nothing()
    for history in ((*asked, captured), (*asked, captured, refused)):
        given(checkout, *history).when(soon).then(Cancel("deadline"), *back, refund, Finished())
    given(checkout, *asked, captured, refused).when(paid).then(
        *(Ship(stock_id=f"s/{product}", at=AT, checkout_id="b/1") for product in ("milk", "bread")), earn, Finished()
    )
    given(checkout, *asked, voided).when(late).then_nothing()
    given(checkout, *asked, voided, late).when(reopened).then(Finished())


def test_a_payment_of_another_amount_goes_back_and_opens_the_basket() -> None:
    error = WrongAmount(basket_id="b", amount=Decimal("8.00"), due=Decimal("9.00"))
    money = refund.model_copy(update={"reason": str(error)})
    given(checkout, *asked, captured).when(Rejected(confirm, error)).then(
        Cancel("deadline"), *back, money, reopen(str(error))
    )


def test_a_basket_that_an_operator_says_is_paid_ends_with_its_money() -> None:
    given(checkout, *asked).when(paid).then_nothing()
    ships = [Ship(stock_id=f"s/{product}", at=AT, checkout_id="b/1") for product in ("milk", "bread")]
    given(checkout, *asked, paid).when(captured).then(*ships, earn, Finished())
    latest = [one.model_copy(update={"at": LATER}) for one in back]
    given(checkout, *asked, paid).when(voided).then(Cancel("deadline"), *latest, Finished())
    given(checkout, *asked, voided).when(paid).then(Finished())


def test_a_payment_that_is_void_before_its_checkout_opens_the_basket_at_once() -> None:
    given(checkout).when(void_before).then_nothing()
    given(checkout, void_before).when(bought).then(Cancel("deadline"), reopen("not paid in time"))
    nameless = void_before.model_copy(update={"reason": ""})
    given(checkout, nameless).when(bought).then(Cancel("deadline"), reopen(""))
    given(checkout, void_before, bought).when(reopened).then(Finished())


@pytest.mark.parametrize(
    "path",
    [
        (*asked, undone, voided),
        (*asked, undone, captured),
        (*asked, captured, refused, reopened),
        (*asked, paid, captured),
        (void_before, bought, reopened),
    ],
    ids=["void", "captured", "refused", "said to be paid", "void before"],
)
def test_what_is_delivered_again_does_nothing(path: tuple[Input, ...]) -> None:
    check_redelivery(checkout, path)


def reopened_at_the_bank(app: App) -> World:
    """A check is at its bank when an operator reopens the basket; the bank clears later, and all time is over."""
    world = begin(app)
    world.client.send_many(list(shop("b", "milk", method=Method.CHECK, points=5)))
    world.client.send(manual)
    world.client.send_many([clear])
    world.advance(2 * PATIENCE)
    return world


def test_a_check_of_a_basket_that_an_operator_reopens_is_void_at_once() -> None:
    world = reopened_at_the_bank(chain)
    assert [(one.reason, one.at) for one in of(world, "payments", PaymentVoided)] == [("the cashier undid it", AT)]
    assert of(world, "payments", PaymentCaptured) == []
    assert (wrong(world), world.dead("checkout")) == ([], [])
    world.client.send(CheckOut(basket_id="b", at=world.now, method=Method.CARD))
    assert [one.attempt for one in of(world, "baskets", BasketPaid)] == [2]
    assert wrong(world) == []


@pytest.mark.parametrize("down", ["checkout", "payments"])
def test_money_that_came_before_the_checkout_knew_is_refunded_and_nothing_leaves_the_store(down: str) -> None:
    world = too_late(chain, down)
    (refunded,) = of(world, "payments", PaymentRefunded)
    assert (refunded.amount, refunded.reason) == (Decimal("4.95"), "the cashier undid it")
    assert of(world, "inventory", StockShipped) == []
    assert [one.checkout_id for one in of(world, "loyalty", PointsEarned)] == ["before"]
    assert (wrong(world), world.dead("checkout")) == ([], [])
    assert world.timers.list("checkout") == {}
    events = [event for found in reported(world).values() for event in found]
    steps = fold(order_journey, *(one for one in events if getattr(one, "checkout_id", "") != "before"))["b"].steps
    assert [step.why for step in steps if step.what is What.REFUNDED] == ["the cashier undid it"]
    assert fold(household_360, *events)["h"].captured == Decimal("0.00")


def too_late(app: App, down: str) -> World:
    """The bank clears a check while checkout or payments are down, and then an operator reopens the basket."""
    world = begin(app)
    world.client.send_many(list(shop("b", "milk", method=Method.CHECK, points=5)))
    world.stop(down)
    world.client.send_many([clear])
    world.client.send(manual)
    world.start(down)
    world.advance(2 * PATIENCE)
    return world


def test_a_checkout_that_forgets_to_refund_keeps_the_money() -> None:
    assert any(
        "4.95 dollars are captured and kept, and 0.00 paid" in text
        for text in wrong(too_late(careless.greedy, "checkout"))
    )


def void_first(app: App, method: Method = Method.CARD) -> World:
    """An operator makes a payment void before its basket is checked out, and all time is over."""
    world = begin(app)
    world.client.send(early)
    world.client.send_many(list(shop("b", "milk", method=method, points=5)))
    world.advance(timedelta(days=400))
    return world


@pytest.mark.parametrize("method", [Method.CARD, Method.CHECK])
def test_a_payment_that_is_void_before_ends_the_checkout_before_it_asks_for_anything(method: Method) -> None:
    world = void_first(chain, method)
    assert [one.reason for one in of(world, "baskets", BasketReopened)] == ["changed their mind"]
    assert of(world, "inventory", StockReserved) == []
    assert (wrong(world), world.dead("checkout")) == ([], [])
    assert world.timers.list("checkout") == {}
    world.client.send(CheckOut(basket_id="b", at=world.now, method=Method.CARD))
    assert len(of(world, "baskets", BasketPaid)) == 1
