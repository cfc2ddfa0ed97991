"""The rules of a basket: what may happen next, and what that makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum

from events.baskets import BasketCheckedOut, BasketEvent, BasketOpened, CouponApplied, ItemAdded, Line
from leftfold import Decider
from services.baskets.bounds import check_amount, check_quantity
from services.baskets.commands import (
    AddItem,
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
    UnknownLine,
)

__all__ = ["Basket", "Stage", "baskets", "decide", "evolve"]


class Stage(Enum):
    """How far a basket has come."""

    UNOPENED = "unopened"
    OPEN = "open"
    CHECKED_OUT = "checked out"


@dataclass(frozen=True)
class Basket:
    """What the rules must remember of a basket."""

    stage: Stage = Stage.UNOPENED
    household_id: str = ""
    store_id: str = ""
    lines: tuple[Line, ...] = ()

    def line(self, product_id: str) -> Line | None:
        """The product's line, if the basket has one."""
        for line in self.lines:
            if line.product_id == product_id:
                return line
        return None


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


def evolve(state: Basket, event: BasketEvent) -> Basket:
    """What a basket is after one more event."""
    match event:
        case BasketOpened():
            return Basket(Stage.OPEN, event.household_id, event.store_id)
        case ItemAdded():
            return Basket(state.stage, state.household_id, state.store_id, (*state.lines, _line(event)))
        case CouponApplied():
            return replace(state, lines=tuple(_with_coupon(line, event) for line in state.lines))
        case BasketCheckedOut():
            return Basket(Stage.CHECKED_OUT)


baskets = Decider(
    "baskets",
    commands=BasketCommand,
    events=BasketEvent,
    state=Basket,
    initial_state=Basket(),
    decide=decide,
    evolve=evolve,
)


def _open(command: OpenBasket, state: Basket) -> BasketOpened:
    match state.stage:
        case Stage.OPEN:
            raise BasketAlreadyOpen(basket_id=command.basket_id)
        case Stage.CHECKED_OUT:
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
        case Stage.CHECKED_OUT:
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
    return BasketCheckedOut(
        basket_id=command.basket_id,
        at=command.at,
        household_id=basket.household_id,
        store_id=basket.store_id,
        lines=basket.lines,
        total=sum((line.sales_value for line in basket.lines), Decimal("0.00")),
    )


def _line(event: ItemAdded) -> Line:
    return Line(
        product_id=event.product_id,
        quantity=event.quantity,
        sales_value=event.sales_value,
        retail_disc=event.retail_disc,
    )


def _with_coupon(line: Line, event: CouponApplied) -> Line:
    if line.product_id != event.product_id:
        return line
    return replace(line, coupon_disc=event.coupon_disc, coupon_match_disc=event.coupon_match_disc)
