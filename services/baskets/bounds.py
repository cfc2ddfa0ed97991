"""What a line may amount to; docs/reference.md has the year of receipts that these bounds were taken from."""

from __future__ import annotations

from decimal import Decimal

from services.baskets.commands import AmountOutOfBounds, QuantityOutOfBounds

__all__ = ["check_amount", "check_quantity"]

NOTHING = Decimal("0.00")
# The largest sale by units is a tank of fuel, sold by the thousandth of a gallon.
MOST_UNITS = 100_000
# No units is a voided scan, a coupon handed in alone or a correction of cents, but never a sale.
MOST_WITHOUT_UNITS = Decimal("5.00")
MOST_DOLLARS = Decimal("1000.00")


def check_quantity(product_id: str, quantity: int, sales_value: Decimal) -> None:
    """Passes a believable number of units for this much money.

    Raises:
        QuantityOutOfBounds: it is too many, or none for more than a correction.
    """
    least = 0 if sales_value <= MOST_WITHOUT_UNITS else 1
    if not least <= quantity <= MOST_UNITS:
        raise QuantityOutOfBounds(product_id=product_id, quantity=quantity, least=least, most=MOST_UNITS)


def check_amount(product_id: str, amount: Decimal, least: Decimal = NOTHING) -> None:
    """Passes a believable price, discount or coupon.

    Raises:
        AmountOutOfBounds: it is less than `least` or more than any line of a grocery, or has a fraction of a cent.
    """
    if not least <= amount <= MOST_DOLLARS or amount != round(amount, 2):
        raise AmountOutOfBounds(product_id=product_id, amount=amount, least=least, most=MOST_DOLLARS)
