"""What payments, households' points, stock and its replenishment let happen, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given as supposing
from hypothesis import strategies as st

from events.inventory import StockOrdered, StockReceived, StockReleased, StockReserved, StockShipped, stock_id
from events.loyalty import LoyaltyEvent, PointsEarned, PointsGivenBack, PointsRedeemed, Tier, TierReached
from events.payments import (
    CaptureRequested,
    Method,
    PaymentAuthorised,
    PaymentCaptured,
    PaymentEvent,
    PaymentRefunded,
    PaymentVoided,
)
from leftfold import DomainError, Timer
from leftfold.testing import check_deciding_twice, check_redelivery, given
from services.inventory.commands import (
    AlreadyReserved,
    NotReserved,
    NoUnits,
    OrderStock,
    OutOfStock,
    Receive,
    Release,
    Reserve,
    Ship,
    StockCommand,
)
from services.inventory.domain import inventory
from services.loyalty.commands import (
    AlreadyRedeemed,
    EarnPoints,
    GiveBackPoints,
    NegativeAmount,
    NotEnoughPoints,
    NothingRedeemed,
    RedeemPoints,
)
from services.loyalty.domain import loyalty
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
from services.replenishment.process import replenishment
from services.replenishment.supplier import DELIVERY, supplier

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
    for wrong in (Decimal(most) + Decimal("0.01"), Decimal("-0.01")):
        declined = PaymentDeclined(amount=wrong, method=method.value, most=Decimal(most))
        given(payments).when(ask(str(wrong), method)).then_rejected(declined)


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


def test_what_no_checkout_asked_for_yet_can_be_void_for_a_household_and_is_never_authorised_then() -> None:
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


def earn(dollars: str, checkout: str = "b/1") -> EarnPoints:
    """The household has paid."""
    return EarnPoints(household_id="h", at=AT, checkout_id=checkout, amount=Decimal(dollars))


def earned(points: int, checkout: str = "b/1") -> PointsEarned:
    """The household got points."""
    return PointsEarned(household_id="h", at=AT, checkout_id=checkout, points=points)


def reached(tier: Tier) -> TierReached:
    """The household is in a better tier."""
    return TierReached(household_id="h", at=AT, tier=tier)


def redeem(points: int, checkout: str = "c/1") -> RedeemPoints:
    """The household pays with points."""
    return RedeemPoints(household_id="h", at=AT, checkout_id=checkout, points=points)


redeemed = PointsRedeemed(household_id="h", at=AT, checkout_id="c/1", points=60)
given_back = PointsGivenBack(household_id="h", at=AT, checkout_id="c/1", points=60)
give_back = GiveBackPoints(household_id="h", at=AT, checkout_id="c/1")


def test_a_whole_dollar_is_a_point() -> None:
    given(loyalty).when(earn("12.99")).then(earned(12))
    given(loyalty).when(earn("0.99")).then(earned(0))


@pytest.mark.parametrize(
    ("history", "dollars", "events"),
    [
        ((earned(499),), "1.00", (earned(1), reached(Tier.SILVER))),
        ((earned(499),), "0.50", (earned(0),)),
        ((earned(500), reached(Tier.SILVER)), "10.00", (earned(20),)),
        ((earned(2480), reached(Tier.SILVER)), "10.00", (earned(20), reached(Tier.GOLD))),
        ((), "2500.00", (earned(2500), reached(Tier.GOLD))),
        ((earned(2500), reached(Tier.GOLD)), "10.00", (earned(30),)),
    ],
)
def test_who_has_earned_much_earns_more(
    history: tuple[LoyaltyEvent, ...], dollars: str, events: tuple[LoyaltyEvent, ...]
) -> None:
    given(loyalty, *history).when(earn(dollars)).then(*events)


@pytest.mark.parametrize("history", [(), (earned(600), reached(Tier.SILVER))])
def test_nothing_is_earned_for_less_than_nothing(history: tuple[LoyaltyEvent, ...]) -> None:
    wrong = NegativeAmount(household_id="h", amount=Decimal("-100.00"))
    given(loyalty, *history).when(earn("-100.00")).then_rejected(wrong)


def test_points_that_are_spent_do_not_lower_the_tier() -> None:
    history = (earned(500), reached(Tier.SILVER), redeemed)
    given(loyalty, *history).when(earn("10.00", "d/1")).then(earned(20, "d/1"))


def test_a_household_redeems_what_it_has() -> None:
    given(loyalty, earned(60)).when(redeem(60)).then(redeemed)
    given(loyalty, earned(60)).when(redeem(61)).then_rejected(NotEnoughPoints(household_id="h", points=61, balance=60))
    given(loyalty, earned(60)).when(redeem(0)).then_rejected(NotEnoughPoints(household_id="h", points=0, balance=60))
    given(loyalty, earned(90), redeemed).when(redeem(31, "d/1")).then_rejected(
        NotEnoughPoints(household_id="h", points=31, balance=30)
    )


def test_a_checkout_redeems_once() -> None:
    given(loyalty, earned(90), redeemed).when(redeem(1)).then_rejected(
        AlreadyRedeemed(household_id="h", checkout_id="c/1")
    )


def test_what_was_redeemed_is_given_back_once_and_not_when_it_was_spent() -> None:
    nothing = NothingRedeemed(household_id="h", checkout_id="c/1")
    given(loyalty, earned(60), redeemed).when(give_back).then(given_back)
    given(loyalty, earned(60), redeemed, given_back).when(give_back).then_rejected(nothing)
    given(loyalty, earned(60), redeemed, given_back).when(redeem(60)).then(redeemed)
    given(loyalty, earned(60), redeemed, earned(5, "c/1")).when(give_back).then_rejected(nothing)


def test_an_account_is_decided_alike_from_a_stored_state() -> None:
    check_deciding_twice(loyalty, [earn("700.00"), redeem(60), give_back, redeem(60), earn("20.00", "c/1"), give_back])


KEY = stock_id("s", "milk")

ten = StockReceived(stock_id=KEY, at=AT, quantity=10)
for_one = StockReserved(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7, left=3)


def reserve(checkout: str = "b/1", units: int = 7) -> Reserve:
    """Asks for some units."""
    return Reserve(stock_id=KEY, at=AT, checkout_id=checkout, quantity=units)


def test_what_is_there_can_be_reserved() -> None:
    given(inventory, ten).when(reserve()).then(for_one)
    given(inventory, ten, for_one).when(reserve("c/1", 3)).then(
        StockReserved(stock_id=KEY, at=AT, checkout_id="c/1", quantity=3, left=0)
    )


def test_what_is_kept_for_others_cannot_be_reserved() -> None:
    given(inventory, ten, for_one).when(reserve("c/1", 4)).then_rejected(OutOfStock(stock_id=KEY, wanted=4, left=3))
    given(inventory).when(reserve()).then_rejected(OutOfStock(stock_id=KEY, wanted=7, left=0))


def test_a_checkout_reserves_a_product_once() -> None:
    given(inventory, ten, for_one).when(reserve(units=1)).then_rejected(
        AlreadyReserved(stock_id=KEY, checkout_id="b/1")
    )


def test_what_is_released_can_be_reserved_again() -> None:
    released = StockReleased(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7)
    given(inventory, ten, for_one).when(Release(stock_id=KEY, at=AT, checkout_id="b/1")).then(released)
    given(inventory, ten, for_one, released).when(reserve("b/1", 10)).then(
        StockReserved(stock_id=KEY, at=AT, checkout_id="b/1", quantity=10, left=0)
    )


def test_what_is_shipped_is_no_longer_in_stock() -> None:
    shipped = StockShipped(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7)
    given(inventory, ten, for_one).when(Ship(stock_id=KEY, at=AT, checkout_id="b/1")).then(shipped)
    given(inventory, ten, for_one, shipped).when(reserve("c/1", 4)).then_rejected(
        OutOfStock(stock_id=KEY, wanted=4, left=3)
    )


@pytest.mark.parametrize("command", [Release, Ship])
def test_only_what_is_reserved_is_released_or_shipped(command: type[Release | Ship]) -> None:
    asked = command(stock_id=KEY, at=AT, checkout_id="c/1")
    given(inventory, ten, for_one).when(asked).then_rejected(NotReserved(stock_id=KEY, checkout_id="c/1"))


@pytest.mark.parametrize("command", [OrderStock, Receive])
def test_what_is_ordered_or_received_is_something(command: Any) -> None:
    given(inventory).when(command(stock_id=KEY, at=AT, quantity=0)).then_rejected(NoUnits(stock_id=KEY, quantity=0))
    given(inventory).when(reserve(units=-1)).then_rejected(NoUnits(stock_id=KEY, quantity=-1))


def test_an_order_is_no_delivery() -> None:
    ordered = StockOrdered(stock_id=KEY, at=AT, quantity=5)
    given(inventory).when(OrderStock(stock_id=KEY, at=AT, quantity=5)).then(ordered)
    given(inventory, ordered).when(reserve(units=1)).then_rejected(OutOfStock(stock_id=KEY, wanted=1, left=0))


CHECKOUTS, UNITS = st.sampled_from(["a/1", "b/1", "c/1"]), st.integers(1, 9)
COMMANDS = st.one_of(
    st.builds(Receive, stock_id=st.just(KEY), at=st.just(AT), quantity=UNITS),
    st.builds(Reserve, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS, quantity=UNITS),
    st.builds(Release, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS),
    st.builds(Ship, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS),
)


@supposing(st.lists(COMMANDS, max_size=30))
def test_what_came_in_is_there_or_was_shipped(commands: list[StockCommand]) -> None:
    state, received, shipped = inventory.initial_state, 0, 0
    for command in commands:
        try:
            events = inventory.decide(command, state)
        except DomainError:
            continue
        state = inventory.fold(state, events)
        received += sum(event.quantity for event in events if isinstance(event, StockReceived))
        shipped += sum(event.quantity for event in events if isinstance(event, StockShipped))
        assert state.free >= 0
        assert received == state.on_hand + shipped
    check_deciding_twice(inventory, commands)


def taken(quantity: int, left: int) -> StockReserved:
    """A checkout took some."""
    return StockReserved(stock_id="s/milk", at=AT, checkout_id="b/1", quantity=quantity, left=left)


def order(quantity: int) -> OrderStock:
    """What is ordered."""
    return OrderStock(stock_id="s/milk", at=AT, quantity=quantity)


ordered = StockOrdered(stock_id="s/milk", at=AT, quantity=12)
received = StockReceived(stock_id="s/milk", at=AT, quantity=12)


def test_little_is_less_than_three_or_than_what_was_just_taken() -> None:
    given(replenishment).when(taken(1, left=3)).then_nothing()
    given(replenishment).when(taken(1, left=2)).then(order(12))
    given(replenishment).when(taken(2000, left=1999)).then(order(8000))


def test_nothing_is_ordered_while_an_order_is_under_way() -> None:
    given(replenishment, taken(1, left=2)).when(taken(1, left=1)).then_nothing()
    given(replenishment, taken(1, left=2), ordered).when(taken(1, left=1)).then_nothing()
    given(replenishment, ordered).when(taken(1, left=1)).then_nothing()


def test_what_came_may_run_out_again() -> None:
    given(replenishment, taken(1, left=2), ordered, received).when(taken(1, left=2)).then(order(12))


def test_what_is_delivered_again_orders_nothing() -> None:
    check_redelivery(replenishment, [taken(1, left=2), ordered, received, taken(1, left=0)])


def delivery(number: int, quantity: int = 12) -> Timer[Receive]:
    """What comes a day later."""
    at = AT + DELIVERY
    return Timer(name=f"order-{number}", at=at, command=Receive(stock_id="s/milk", at=at, quantity=quantity))


def test_each_order_comes_a_day_later() -> None:
    given(supplier).when(ordered).then(delivery(1))
    given(supplier, ordered).when(ordered).then(delivery(2))
    check_redelivery(supplier, [ordered, ordered])


def test_what_is_ordered_at_the_end_of_all_time_comes_no_later() -> None:
    end = datetime.max.replace(tzinfo=UTC)
    receive = Receive(stock_id="s/milk", at=end, quantity=12)
    given(supplier).when(ordered.model_copy(update={"at": end})).then(Timer(name="order-1", at=end, command=receive))
