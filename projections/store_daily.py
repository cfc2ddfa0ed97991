"""What does a store take on a day?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from events.baskets import BasketCheckedOut
from leftfold import QueryView
from leftfold.reading import Views

__all__ = ["StoreDay", "best_days", "store_daily"]


@dataclass(frozen=True)
class StoreDay:
    """All receipts of one store on one day (UTC) added up."""

    store_id: str
    day: date
    baskets: int
    lines: int
    sales_value: Decimal


store_daily = QueryView(
    "store_daily",
    events=BasketCheckedOut,
    row=StoreDay,
    key=lambda r: (r.store_id, r.day),
    query="""
        SELECT store_id,
               date(at) AS day,
               count(*) AS baskets,
               sum(size(lines)) AS lines,
               CAST(sum(total) AS DECIMAL(18, 2)) AS sales_value
        FROM BasketCheckedOut
        GROUP BY store_id, date(at)
    """,
    indexes=("store_id",),
)


def best_days(views: Views, store_id: str, count: int) -> list[StoreDay]:
    """The days on which a store took most, the best first."""
    days = views[store_daily].find(store_id=store_id).values()
    return sorted(days, key=lambda row: (-row.sales_value, row.day))[:count]
