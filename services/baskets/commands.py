"""What may be asked of a basket, and the rules that may say no. `at` is the asker's time; the service has no clock."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from events.payments import Method
from leftfold import Command, DomainError

__all__ = [
    "AddItem",
    "AmountOutOfBounds",
    "ApplyCoupon",
    "BasketAlreadyOpen",
    "BasketClosed",
    "BasketCommand",
    "BasketNotOpen",
    "CheckOut",
    "ConfirmPayment",
    "CouponAlreadyApplied",
    "EmptyBasket",
    "NotWaitingForPayment",
    "OpenBasket",
    "ProductAlreadyAdded",
    "QuantityOutOfBounds",
    "ReopenBasket",
    "TooManyPoints",
    "UnknownLine",
    "WrongAmount",
]


class BasketNotOpen(DomainError, message="basket {basket_id} was never opened"):
    """A basket is opened before anything goes into it."""

    basket_id: str


class BasketAlreadyOpen(DomainError, message="basket {basket_id} is already open"):
    """A basket is opened once."""

    basket_id: str


class BasketClosed(DomainError, message="basket {basket_id} is already checked out"):
    """Nothing happens to a basket after its checkout."""

    basket_id: str


class EmptyBasket(DomainError, message="basket {basket_id} has no lines to check out"):
    """A receipt has at least one line."""

    basket_id: str


class ProductAlreadyAdded(DomainError, message="basket {basket_id} already has a line for product {product_id}"):
    """The register posts one line per product, with all its units."""

    basket_id: str
    product_id: str


class UnknownLine(DomainError, message="basket {basket_id} has no line for product {product_id}"):
    """A coupon belongs to a line that is there."""

    basket_id: str
    product_id: str


class CouponAlreadyApplied(DomainError, message="product {product_id} in basket {basket_id} already has a coupon"):
    """A line takes one coupon."""

    basket_id: str
    product_id: str


class QuantityOutOfBounds(
    DomainError, message="{quantity} units of product {product_id} are not within {least} to {most}"
):
    """A line has a believable number of units, and none only if it sells nothing."""

    product_id: str
    quantity: int
    least: int
    most: int


class AmountOutOfBounds(
    DomainError, message="${amount} for product {product_id} is not whole cents within ${least} to ${most}"
):
    """A price, discount or coupon is a believable amount of dollars and whole cents."""

    product_id: str
    amount: Decimal
    least: Decimal
    most: Decimal


class TooManyPoints(DomainError, message="{points} points for basket {basket_id}; it takes {most} at most"):
    """Points pay for what is due at most, and nothing at a register."""

    basket_id: str
    points: int
    most: int


class NotWaitingForPayment(DomainError, message="checkout {attempt} of basket {basket_id} waits for no payment"):
    """A checkout is paid or undone once, and only the last one of its basket."""

    basket_id: str
    attempt: int


class WrongAmount(DomainError, message="${amount} is not what basket {basket_id} comes to: ${due}"):
    """A payment is exactly what is due."""

    basket_id: str
    amount: Decimal
    due: Decimal


class _BasketCommand(Command, category="baskets", key="basket_id", rejects=(BasketClosed,)):
    basket_id: str
    at: datetime


class OpenBasket(_BasketCommand, rejects=(BasketAlreadyOpen,)):
    """Take a basket in a store."""

    household_id: str
    store_id: str


class AddItem(_BasketCommand, rejects=(BasketNotOpen, ProductAlreadyAdded, QuantityOutOfBounds, AmountOutOfBounds)):
    """Post all units of one product; `sales_value` is the price for all of them after the loyalty discount."""

    product_id: str
    quantity: int
    sales_value: Decimal
    retail_disc: Decimal = Decimal("0.00")


class ApplyCoupon(_BasketCommand, rejects=(BasketNotOpen, UnknownLine, CouponAlreadyApplied, AmountOutOfBounds)):
    """Hand in a manufacturer's coupon for a line; the chain may match it."""

    product_id: str
    coupon_disc: Decimal
    coupon_match_disc: Decimal = Decimal("0.00")


class CheckOut(_BasketCommand, rejects=(BasketNotOpen, EmptyBasket, TooManyPoints)):
    """Turn the basket into a receipt, to be paid by this method and with so many points of the household's."""

    method: Method = Method.AT_REGISTER
    points: int = 0


class _AfterCheckOut(Command, category="baskets", key="basket_id", rejects=(NotWaitingForPayment,)):
    basket_id: str
    at: datetime
    attempt: int


class ConfirmPayment(_AfterCheckOut, rejects=(WrongAmount,)):
    """Close the basket for good: what this checkout comes to is paid."""

    payment_id: str
    amount: Decimal


class ReopenBasket(_AfterCheckOut):
    """Undo a checkout that came to nothing: the receipt is void, and coupons go back to the household."""

    reason: str


BasketCommand = OpenBasket | AddItem | ApplyCoupon | CheckOut | ConfirmPayment | ReopenBasket
