"""How often, how much of and for how much does a product sell?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from heapq import nlargest
from operator import attrgetter

from events.baskets import BasketCheckedOut, BasketReopened, Line
from leftfold import SpreadView
from leftfold.client import Views

__all__ = ["ProductSales", "Sold", "best_sellers", "lines", "product_sales", "sell"]


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


@dataclass(frozen=True)
class Sold:
    """A line of a receipt, to be added once, or to be taken back: -1."""

    line: Line
    times: int = 1


def lines(event: BasketCheckedOut | BasketReopened) -> Iterable[tuple[str, Sold]]:
    """Every line of a receipt under its product."""
    times = 1 if isinstance(event, BasketCheckedOut) else -1
    return ((line.product_id, Sold(line, times)) for line in event.lines)


def sell(row: ProductSales | None, sold: Sold) -> ProductSales:
    """The product after one more line, whichever line comes first."""
    line, times = sold.line, sold.times
    row = row or ProductSales(line.product_id)
    return ProductSales(
        product_id=line.product_id,
        lines=row.lines + times,
        quantity=row.quantity + times * line.quantity,
        sales_value=row.sales_value + times * line.sales_value,
        retail_disc=row.retail_disc + times * line.retail_disc,
        coupon_disc=row.coupon_disc + times * line.coupon_disc,
        coupon_match_disc=row.coupon_match_disc + times * line.coupon_match_disc,
    )


product_sales = SpreadView(
    "product_sales",
    events=BasketCheckedOut | BasketReopened,
    row=ProductSales,
    each=lines,
    evolve=sell,
    version=2,
)


def best_sellers(views: Views, count: int) -> list[ProductSales]:
    """The products that bring in most, the best first; it reads the whole view."""
    rows = (row for _, row in views[product_sales].items())
    return nlargest(count, rows, key=attrgetter("sales_value"))
