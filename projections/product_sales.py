"""How often, how much of and for how much does a product sell?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from heapq import nlargest
from operator import attrgetter

from events.baskets import BasketCheckedOut, Line
from leftfold import SpreadView
from leftfold.reading import Views

__all__ = ["ProductSales", "best_sellers", "lines", "product_sales", "sell"]


@dataclass(frozen=True)
class ProductSales:
    """All receipt lines of one product added up; units of fuel are thousandths of a gallon."""

    product_id: str
    lines: int = 0
    quantity: int = 0
    sales_value: Decimal = Decimal("0.00")
    retail_disc: Decimal = Decimal("0.00")
    coupon_disc: Decimal = Decimal("0.00")
    coupon_match_disc: Decimal = Decimal("0.00")


def lines(event: BasketCheckedOut) -> Iterable[tuple[str, Line]]:
    """Every line of a receipt under its product."""
    return ((line.product_id, line) for line in event.lines)


def sell(row: ProductSales | None, line: Line) -> ProductSales:
    """The product after one more line, whichever line comes first."""
    row = row or ProductSales(line.product_id)
    return ProductSales(
        product_id=line.product_id,
        lines=row.lines + 1,
        quantity=row.quantity + line.quantity,
        sales_value=row.sales_value + line.sales_value,
        retail_disc=row.retail_disc + line.retail_disc,
        coupon_disc=row.coupon_disc + line.coupon_disc,
        coupon_match_disc=row.coupon_match_disc + line.coupon_match_disc,
    )


product_sales = SpreadView("product_sales", events=BasketCheckedOut, row=ProductSales, each=lines, evolve=sell)


def best_sellers(views: Views, count: int) -> list[ProductSales]:
    """The products that bring in most, the best first; it reads the whole view."""
    rows = (row for _, row in views[product_sales].items())
    return nlargest(count, rows, key=attrgetter("sales_value"))
