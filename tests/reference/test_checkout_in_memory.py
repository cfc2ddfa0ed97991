"""The checkout across all services, from end to end: paid, refused at each step, late; and nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

import pytest

from events.baskets import BasketPaid, BasketReopened, CouponReturned
from events.inventory import StockOrdered, StockReceived, StockReleased, StockReserved, StockShipped
from events.loyalty import PointsEarned, PointsGivenBack, PointsRedeemed
from events.payments import CaptureRequested, Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import Command, World, memory
from services.baskets.commands import BasketClosed, CheckOut
from services.checkout.process import PATIENCE
from services.loyalty.commands import EarnPoints
from services.payments.commands import Clear, PaymentVoid
from services.replenishment.supplier import DELIVERY
from tests.reference.chain import AT, chain, of, shop, stock


@pytest.fixture
def world() -> Iterator[World]:
    """The chain with some stock."""
    with memory(chain, now=AT) as world:
        world.client.send_many(list(stock("milk", "bread", "eggs")))
        yield world


def buy(world: World, *commands: Command) -> None:
    """Sends commands that no service refuses."""
    for command in commands:
        world.client.send(command)


def dead(world: World) -> list[object]:
    """The dead letters of all processes."""
    return [world.dead(name) for name in ("checkout", "replenishment", "supplier") if world.dead(name)]


def test_a_card_pays_a_basket_at_once(world: World) -> None:
    buy(world, *shop("b", "milk", "bread", coupon="1.00"))
    (paid,) = of(world, "baskets", BasketPaid)
    assert (paid.payment_id, paid.amount, paid.attempt) == ("b/1", Decimal("9.00"), 1)
    assert [captured.amount for captured in of(world, "payments", PaymentCaptured)] == [Decimal("9.00")]
    assert {shipped.stock_id for shipped in of(world, "inventory", StockShipped)} == {"s/milk", "s/bread"}
    assert [earned.points for earned in of(world, "loyalty", PointsEarned)] == [9]
    assert (world.timers.list(), dead(world)) == ({}, [])
    with pytest.raises(BasketClosed):
        buy(world, CheckOut(basket_id="b", at=AT))


def test_what_is_not_there_gives_back_what_was_reserved_and_the_coupon(world: World) -> None:
    buy(world, *shop("b", "milk", "caviar", "bread", coupon="1.00"))
    (reopened,) = of(world, "baskets", BasketReopened)
    assert reopened.reason == "2 of s/caviar are wanted and 0 are left"
    assert [back.coupon_disc for back in of(world, "baskets", CouponReturned)] == [Decimal("1.00")]
    released = {event.stock_id for event in of(world, "inventory", StockReleased)}
    assert released == {event.stock_id for event in of(world, "inventory", StockReserved)} == {"s/milk", "s/bread"}
    assert of(world, "payments") == []
    assert dead(world) == []


def test_a_declined_payment_gives_everything_back_and_another_one_may_succeed(world: World) -> None:
    buy(world, *shop("b", "milk", price="151.00", coupon="0.50", method=Method.CHECK))
    (reopened,) = of(world, "baskets", BasketReopened)
    assert reopened.reason == "$150.50 by check is declined: not within $0.00 to $150.00"
    assert len(of(world, "inventory", StockReleased)) == 1
    buy(world, CheckOut(basket_id="b", at=AT + timedelta(minutes=2), method=Method.CARD))
    (paid,) = of(world, "baskets", BasketPaid)
    assert (paid.attempt, paid.amount) == (2, Decimal("151.00")), "the coupon went back with the first attempt"
    assert dead(world) == []


def test_points_pay_their_part_and_come_back_when_the_rest_is_declined(world: World) -> None:
    buy(world, EarnPoints(household_id="h", at=AT, checkout_id="before", amount=Decimal(300)))
    buy(world, *shop("dear", "milk", price="160.00", method=Method.CHECK, points=250))
    buy(world, *shop("fair", "bread", price="160.00", method=Method.CARD, points=300))
    assert [event.points for event in of(world, "loyalty", PointsRedeemed)] == [250, 300]
    assert [event.points for event in of(world, "loyalty", PointsGivenBack)] == [250]
    assert [event.amount for event in of(world, "baskets", BasketPaid)] == [Decimal("157.00")]
    assert dead(world) == []


def test_a_check_that_its_bank_clears_in_time_pays(world: World) -> None:
    buy(world, *shop("b", "milk", method=Method.CHECK))
    assert len(of(world, "payments", CaptureRequested)) == 1
    assert world.timers.list() == {("checkout", "b/1", "deadline"): AT + PATIENCE}
    world.advance(PATIENCE - timedelta(seconds=1))
    buy(world, Clear(payment_id="b/1", at=world.now))
    world.advance(PATIENCE)
    assert len(of(world, "baskets", BasketPaid)) == 1
    assert of(world, "payments", PaymentVoided) == []


def test_a_check_that_is_not_cleared_in_time_is_void_and_everything_goes_back(world: World) -> None:
    buy(world, *shop("b", "milk", "eggs", method=Method.CHECK))
    world.advance(PATIENCE)
    (voided,) = of(world, "payments", PaymentVoided)
    assert (voided.reason, voided.at) == ("not paid in time", AT + PATIENCE)
    assert [event.reason for event in of(world, "baskets", BasketReopened)] == ["not paid in time"]
    assert len(of(world, "inventory", StockReleased)) == 2
    assert len(of(world, "payments", PaymentAuthorised)) == 1
    with pytest.raises(PaymentVoid):
        buy(world, Clear(payment_id="b/1", at=world.now))
    assert of(world, "baskets", BasketPaid) == []
    assert dead(world) == []


def test_what_runs_out_is_ordered_once_until_it_comes(world: World) -> None:
    for number in range(4):
        buy(world, *shop(f"b-{number}", "milk"))
    assert [event.quantity for event in of(world, "inventory", StockOrdered)] == [12]
    buy(world, *stock("milk", units=3))
    buy(world, *shop("again", "milk"))
    assert len(of(world, "inventory", StockOrdered)) == 1, "three are left after what came"
    buy(world, *shop("last", "milk"))
    assert len(of(world, "inventory", StockOrdered)) == 2


def test_what_was_ordered_comes_a_day_later_unless_an_operator_sends_it_back(world: World) -> None:
    buy(
        world,
        *(command for product in ("milk", "eggs") for n in range(4) for command in shop(f"{product}-{n}", product)),
    )
    assert world.timers.list("supplier") == {
        ("supplier", "s/milk", "order-1"): AT + DELIVERY,
        ("supplier", "s/eggs", "order-1"): AT + DELIVERY,
    }
    world.timers.cancel("supplier", "s/eggs", "order-1", reason="too many eggs")
    world.advance(DELIVERY - timedelta(seconds=1))
    assert len(of(world, "inventory", StockReceived)) == 3, "what was there at first"
    world.advance(timedelta(seconds=1))
    (received,) = [event for event in of(world, "inventory", StockReceived) if event.at > AT]
    assert (received.stock_id, received.quantity, received.at) == ("s/milk", 12, AT + DELIVERY)
    buy(world, *shop("again", "milk", at=world.now))
    assert len(of(world, "inventory", StockOrdered)) == 2, "eight and more are left"
