"""Query views and frame views over the ledgers of tests.domains.ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from leftfold import App, QueryView, ReferenceFile
from leftfold.spark import FrameView
from tests.domains.ledger import Closed, Moved, Opened

__all__ = [
    "OwnerSums",
    "Region",
    "app",
    "balances",
    "but_one",
    "hostile",
    "hourly",
    "initial",
    "owner_frame",
    "owner_sums",
    "regions",
    "still_open",
    "sums_of",
]


@dataclass(frozen=True)
class OwnerSums:
    """What one owner moved."""

    owner: str
    moves: int
    total: Decimal
    least: Decimal
    most: Decimal


_SUMS = """
    SELECT owner, count(*) AS moves, CAST(sum(amount) AS DECIMAL(18, 2)) AS total,
           CAST(min(amount) AS DECIMAL(18, 2)) AS least, CAST(max(amount) AS DECIMAL(18, 2)) AS most
    FROM Moved
    GROUP BY owner
"""
owner_sums = QueryView(
    "owner_sums", events=Moved, row=OwnerSums, key=lambda r: r.owner, query=_SUMS, indexes=("moves",)
)


def sums_of(name: str, **changes: Any) -> QueryView[Any, Any]:
    """The sums of owners, in which something is different."""
    parts: dict[str, Any] = {"events": Moved, "row": OwnerSums, "key": lambda r: r.owner, "query": _SUMS}
    return QueryView(name, **(parts | changes))


def initial(row: OwnerSums) -> str:
    """A key that several rows have."""
    return row.owner[:1]


def but_one(row: OwnerSums) -> str:
    """A key that one row lacks."""
    return "" if row.owner == "o/3" else row.owner


@dataclass(frozen=True)
class Balance:
    """How many ledgers of an owner stand above zero, and on which day that was last so."""

    owner: str
    above: int
    last: date | None


balances = QueryView(
    "balances",
    events=Moved,
    row=Balance,
    key=lambda r: r.owner,
    query="""
        WITH ledgers AS (SELECT owner, ledger, sum(amount) AS balance, max(_time) AS last FROM Moved GROUP BY 1, 2)
        SELECT owner, count(*) AS above, date(max(last)) AS last FROM ledgers WHERE balance > 0 GROUP BY owner
    """,
)


@dataclass(frozen=True)
class Standing:
    """A ledger that was opened more often than closed."""

    ledger: str
    owner: str
    times: int


still_open = QueryView(
    "still_open",
    events=Opened | Closed,
    row=Standing,
    key=lambda r: (r.owner, r.ledger),
    query="""
        SELECT ledger, owner, sum(step) AS times FROM (
            SELECT ledger, owner, 1 AS step FROM Opened UNION ALL SELECT ledger, owner, -1 AS step FROM Closed
        ) GROUP BY ledger, owner HAVING sum(step) > 0
    """,
)


@dataclass(frozen=True)
class Region:
    """Where an owner lives."""

    owner: str
    region: str


@dataclass(frozen=True)
class RegionSums:
    """What the owners of a region moved."""

    region: str
    total: Decimal


def regions(file: Path) -> QueryView[RegionSums, str]:
    """Sums by region, with the owners' regions in a file."""
    return QueryView(
        "regions",
        events=Moved,
        row=RegionSums,
        key=lambda r: r.region,
        query="""
            SELECT coalesce(o.region, 'nowhere') AS region, CAST(sum(m.amount) AS DECIMAL(18, 2)) AS total
            FROM Moved m LEFT JOIN owners o ON o.owner = m.owner GROUP BY 1
        """,
        references={"owners": ReferenceFile(str(file), row=Region)},
    )


@dataclass(frozen=True)
class Hourly:
    """What was moved in an hour."""

    hour: datetime
    moves: int


hourly = QueryView(
    "hourly",
    events=Moved,
    row=Hourly,
    key=lambda r: r.hour,
    query="SELECT window(_time, '1 hour').start AS hour, count(*) AS moves FROM Moved GROUP BY window(_time, '1 hour')",
    late=timedelta(hours=2),
)

owner_frame = FrameView(
    "owner_frame",
    events=Moved,
    row=OwnerSums,
    key=lambda r: r.owner,
    frame=lambda tables: (
        tables["Moved"]
        .groupBy("owner")
        .agg(
            f.count("*").alias("moves"),
            f.sum("amount").cast("decimal(18, 2)").alias("total"),
            f.min("amount").cast("decimal(18, 2)").alias("least"),
            f.max("amount").cast("decimal(18, 2)").alias("most"),
        )
    ),
)

app = App("queries", partitions=4, views=[owner_sums, balances, still_open, owner_frame])
hostile = App(
    "hostile",
    views=[
        sums_of("reflecting", query="SELECT reflect('a') FROM Moved"),
        sums_of("lacking", query="SELECT owner FROM Moved"),
    ],
)
"""Its SQL must not pass."""
