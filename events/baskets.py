"""What happens to a basket. Names and fields are the storage format: add a field or a version, never change one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from pydantic import TypeAdapter

from leftfold import Event, Json

__all__ = ["BasketCheckedOut", "BasketEvent", "BasketOpened", "CouponApplied", "ItemAdded", "Line"]

_ZERO = Decimal("0.00")


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
    """The basket became a receipt; `total` is the sum of the lines' sales values."""

    household_id: str
    store_id: str
    lines: tuple[Line, ...]
    total: Decimal


BasketEvent = BasketOpened | ItemAdded | CouponApplied | BasketCheckedOut
