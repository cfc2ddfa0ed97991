"""What a basket lets happen, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from events.baskets import BasketCheckedOut, BasketEvent, BasketOpened, CouponApplied, ItemAdded, Line
from leftfold import DomainError
from leftfold.testing import check_deciding_twice, given
from services.baskets.commands import (
    AddItem,
    AmountOutOfBounds,
    ApplyCoupon,
    BasketAlreadyOpen,
    BasketClosed,
    BasketCommand,
    BasketNotOpen,
    CheckOut,
    CouponAlreadyApplied,
    EmptyBasket,
    OpenBasket,
    ProductAlreadyAdded,
    QuantityOutOfBounds,
    UnknownLine,
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


def test_a_coupon_goes_on_a_line() -> None:
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
    for _, command in history(weeks=[1]):
        state = baskets.initial_state if isinstance(command, OpenBasket) else state
        state = baskets.fold(state, baskets.decide(command, state))
        with pytest.raises(DomainError):
            baskets.decide(command, state)


def test_every_command_of_a_real_day_is_decided_alike_from_a_stored_state() -> None:
    check_deciding_twice(baskets, (command for _, command in history(weeks=[1])))
