"""What happens to a basket. Names and fields are the storage format: add a field or a version, never change one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from pydantic import TypeAdapter

from events.loyalty import POINT
from events.payments import Method
from leftfold import Event, Json

__all__ = [
    "BasketCheckedOut",
    "BasketEvent",
    "BasketOpened",
    "BasketPaid",
    "BasketReopened",
    "CouponApplied",
    "CouponReturned",
    "ItemAdded",
    "Line",
    "basket_of",
    "checkout_id",
]

_ZERO = Decimal("0.00")


def checkout_id(basket_id: str, attempt: int) -> str:
    """The name of one checkout of a basket, in every service that has a part in it."""
    return f"{basket_id}/{attempt}"


def basket_of(checkout_id: str) -> str:
    """The basket that a checkout is one of."""
    return checkout_id.rpartition("/")[0]


class _BasketEvent(Event, category="baskets", key="basket_id"):
    basket_id: str
    at: datetime


class BasketOpened(_BasketEvent):
    """A household took a basket in a store."""

    household_id: str
    store_id: str


class ItemAdded(_BasketEvent):
    """The register posted all units of one product; the loyalty discount is already off `sales_value`."""

    product_id: str
    quantity: int
    sales_value: Decimal
    retail_disc: Decimal


class CouponApplied(_BasketEvent):
    """A manufacturer's coupon paid for part of a line, and the chain may have matched it."""

    product_id: str
    coupon_disc: Decimal
    coupon_match_disc: Decimal


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one product adds to the receipt: units (fuel: thousandths of a gallon) and dollars for all of them.

    The chain takes `sales_value`, of which a manufacturer pays `coupon_disc` and the household the rest. The shelf
    price was higher by what the chain gave: `retail_disc` for loyalty and `coupon_match_disc` to match the coupon.
    """

    product_id: str
    quantity: int
    sales_value: Decimal
    retail_disc: Decimal
    coupon_disc: Decimal = _ZERO
    coupon_match_disc: Decimal = _ZERO


_LINES = TypeAdapter(tuple[Line, ...])


def _v1_to_v2(old: Json) -> Json:
    """Adds the total, which receipts of version 1 left to their readers."""
    lines = _LINES.validate_python(old["lines"])
    return {**old, "total": str(sum((line.sales_value for line in lines), _ZERO))}


class BasketCheckedOut(_BasketEvent, version=2, upcasts={1: _v1_to_v2}):
    """The basket became a receipt; `total` is the sum of the lines' sales values.

    `attempt` counts the checkouts of the basket, from 1; `points` are those that the household wants to pay with.
    """

    household_id: str
    store_id: str
    lines: tuple[Line, ...]
    total: Decimal
    attempt: int = 1
    method: Method = Method.AT_REGISTER
    points: int = 0

    @property
    def due(self) -> Decimal:
        """What the household pays itself: manufacturers pay the coupons, and points pay their part."""
        coupons = sum((line.coupon_disc for line in self.lines), _ZERO)
        return max(self.total - coupons - self.points * POINT, _ZERO)


class BasketReopened(_BasketEvent):
    """A checkout came to nothing: what its receipt added to any sum, this takes back, as of `checked_out_at`."""

    household_id: str
    store_id: str
    lines: tuple[Line, ...]
    total: Decimal
    attempt: int
    checked_out_at: datetime
    reason: str


class CouponReturned(_BasketEvent):
    """A household has its coupon again, since the checkout came to nothing; the line is without one."""

    product_id: str
    coupon_disc: Decimal
    coupon_match_disc: Decimal


class BasketPaid(_BasketEvent):
    """The household paid `amount` for a checkout; nothing more happens to the basket."""

    household_id: str
    store_id: str
    attempt: int
    payment_id: str
    amount: Decimal


BasketEvent = BasketOpened | ItemAdded | CouponApplied | BasketCheckedOut | BasketReopened | CouponReturned | BasketPaid
