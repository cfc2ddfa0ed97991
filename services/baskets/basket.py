"""What the rules remember of a basket, and what an event makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum

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

__all__ = ["Basket", "Receipt", "Stage", "evolve"]

_NOTHING = Decimal("0.00")


class Stage(Enum):
    """How far a basket has come."""

    UNOPENED = "unopened"
    OPEN = "open"
    CHECKED_OUT = "checked out"
    PAID = "paid"


@dataclass(frozen=True)
class Receipt:
    """A checkout that is neither paid nor undone: when it was, and what the household owes for it."""

    at: datetime
    due: Decimal


@dataclass(frozen=True)
class Basket:
    """What the rules must remember of a basket; `attempt` counts its checkouts."""

    stage: Stage = Stage.UNOPENED
    household_id: str = ""
    store_id: str = ""
    lines: tuple[Line, ...] = ()
    attempt: int = 0
    receipt: Receipt | None = None

    def line(self, product_id: str) -> Line | None:
        """The product's line, if the basket has one."""
        for line in self.lines:
            if line.product_id == product_id:
                return line
        return None

    @property
    def total(self) -> Decimal:
        """The sum of the lines' sales values."""
        return sum((line.sales_value for line in self.lines), _NOTHING)


def evolve(state: Basket, event: BasketEvent) -> Basket:
    """What a basket is after one more event."""
    match event:
        case BasketOpened():
            return Basket(Stage.OPEN, event.household_id, event.store_id)
        case ItemAdded():
            lines = (*state.lines, _line(event))
            return Basket(state.stage, state.household_id, state.store_id, lines, state.attempt)
        case CouponApplied():
            return _with_coupon(state, event.product_id, event.coupon_disc, event.coupon_match_disc)
        case BasketCheckedOut():
            if event.method is Method.AT_REGISTER:
                return Basket(Stage.CHECKED_OUT, attempt=event.attempt)
            receipt = Receipt(event.at, event.due)
            return replace(state, stage=Stage.CHECKED_OUT, attempt=event.attempt, receipt=receipt)
        case BasketReopened():
            return replace(state, stage=Stage.OPEN, receipt=None)
        case CouponReturned():
            return _with_coupon(state, event.product_id, _NOTHING, _NOTHING)
        case BasketPaid():
            return Basket(Stage.PAID, attempt=event.attempt)


def _line(event: ItemAdded) -> Line:
    return Line(
        product_id=event.product_id,
        quantity=event.quantity,
        sales_value=event.sales_value,
        retail_disc=event.retail_disc,
    )


def _with_coupon(state: Basket, product_id: str, coupon: Decimal, match: Decimal) -> Basket:
    lines = (
        replace(line, coupon_disc=coupon, coupon_match_disc=match) if line.product_id == product_id else line
        for line in state.lines
    )
    return replace(state, lines=tuple(lines))
