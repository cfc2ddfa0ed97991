"""What does a store take on a day?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold import QueryView
from leftfold.client import Views

__all__ = ["StoreDay", "best_days", "store_daily"]


@dataclass(frozen=True)
class StoreDay:
    """All receipts of one store on one day (UTC) added up, without those that came to nothing."""

    store_id: str
    day: date
    baskets: int
    lines: int
    sales_value: Decimal


store_daily = QueryView(
    "store_daily",
    events=BasketCheckedOut | BasketReopened,
    row=StoreDay,
    key=lambda r: (r.store_id, r.day),
    query="""
        SELECT store_id,
               date(at) AS day,
               sum(sign) AS baskets,
               sum(sign * size(lines)) AS lines,
               CAST(sum(sign * total) AS DECIMAL(18, 2)) AS sales_value
        FROM (
            SELECT store_id, at, lines, total, 1 AS sign FROM BasketCheckedOut
            UNION ALL
            SELECT store_id, checked_out_at AS at, lines, total, -1 AS sign FROM BasketReopened
        ) receipts
        GROUP BY store_id, date(at)
        HAVING sum(sign) > 0
    """,
    indexes=("store_id",),
    version=2,
)


def best_days(views: Views, store_id: str, count: int) -> list[StoreDay]:
    """The days on which a store took most, the best first."""
    days = views[store_daily].find(store_id=store_id).values()
    return sorted(days, key=lambda row: (-row.sales_value, row.day))[:count]
