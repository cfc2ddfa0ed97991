"""The rules of a basket: what may happen next."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketEvent, BasketOpened, CouponApplied, ItemAdded
from events.loyalty import POINT
from events.payments import Method
from leftfold import Decider
from services.baskets.basket import Basket, Stage, evolve
from services.baskets.bounds import check_amount, check_quantity
from services.baskets.commands import (
    AddItem,
    ApplyCoupon,
    BasketAlreadyOpen,
    BasketClosed,
    BasketCommand,
    BasketNotOpen,
    CheckOut,
    ConfirmPayment,
    CouponAlreadyApplied,
    EmptyBasket,
    OpenBasket,
    ProductAlreadyAdded,
    ReopenBasket,
    TooManyPoints,
    UnknownLine,
)
from services.baskets.settling import confirm, reopen

__all__ = ["baskets", "decide"]


def decide(command: BasketCommand, state: Basket) -> Sequence[BasketEvent]:
    """What happens when this is asked of a basket in this state.

    Raises:
        DomainError: a rule says no; each command lists its own in `rejects`.
    """
    match command:
        case OpenBasket():
            return [_open(command, state)]
        case AddItem():
            return [_add(command, _opened(command, state))]
        case ApplyCoupon():
            return [_apply(command, _opened(command, state))]
        case CheckOut():
            return [_check_out(command, _opened(command, state))]
        case ConfirmPayment():
            return [confirm(command, state)]
        case ReopenBasket():
            return reopen(command, state)


baskets = Decider(
    "baskets",
    commands=BasketCommand,
    events=BasketEvent,
    state=Basket,
    initial_state=Basket(),
    decide=decide,
    evolve=evolve,
    version=2,
)


def _open(command: OpenBasket, state: Basket) -> BasketOpened:
    match state.stage:
        case Stage.OPEN:
            raise BasketAlreadyOpen(basket_id=command.basket_id)
        case Stage.CHECKED_OUT | Stage.PAID:
            raise BasketClosed(basket_id=command.basket_id)
        case Stage.UNOPENED:
            return BasketOpened(
                basket_id=command.basket_id,
                at=command.at,
                household_id=command.household_id,
                store_id=command.store_id,
            )


def _opened(command: BasketCommand, state: Basket) -> Basket:
    match state.stage:
        case Stage.UNOPENED:
            raise BasketNotOpen(basket_id=command.basket_id)
        case Stage.CHECKED_OUT | Stage.PAID:
            raise BasketClosed(basket_id=command.basket_id)
        case Stage.OPEN:
            return state


def _add(command: AddItem, basket: Basket) -> ItemAdded:
    if basket.line(command.product_id):
        raise ProductAlreadyAdded(basket_id=command.basket_id, product_id=command.product_id)
    check_amount(command.product_id, command.sales_value)
    check_amount(command.product_id, command.retail_disc)
    check_quantity(command.product_id, command.quantity, command.sales_value)
    return ItemAdded(
        basket_id=command.basket_id,
        at=command.at,
        product_id=command.product_id,
        quantity=command.quantity,
        sales_value=command.sales_value,
        retail_disc=command.retail_disc,
    )


def _apply(command: ApplyCoupon, basket: Basket) -> CouponApplied:
    line = basket.line(command.product_id)
    if line is None:
        raise UnknownLine(basket_id=command.basket_id, product_id=command.product_id)
    if line.coupon_disc:
        raise CouponAlreadyApplied(basket_id=command.basket_id, product_id=command.product_id)
    check_amount(command.product_id, command.coupon_disc, least=Decimal("0.01"))
    check_amount(command.product_id, command.coupon_match_disc)
    return CouponApplied(
        basket_id=command.basket_id,
        at=command.at,
        product_id=command.product_id,
        coupon_disc=command.coupon_disc,
        coupon_match_disc=command.coupon_match_disc,
    )


def _check_out(command: CheckOut, basket: Basket) -> BasketCheckedOut:
    if not basket.lines:
        raise EmptyBasket(basket_id=command.basket_id)
    receipt = BasketCheckedOut(
        basket_id=command.basket_id,
        at=command.at,
        household_id=basket.household_id,
        store_id=basket.store_id,
        lines=basket.lines,
        total=basket.total,
        attempt=basket.attempt + 1,
        method=command.method,
    )
    if not command.points:
        return receipt
    most = 0 if receipt.method is Method.AT_REGISTER else int(receipt.due / POINT)
    if not 0 < command.points <= most:
        raise TooManyPoints(basket_id=command.basket_id, points=command.points, most=most)
    return receipt.model_copy(update={"points": command.points})
