"""The reports as a value: a deployable of its own, since only it needs Spark."""

from __future__ import annotations

from leftfold import App
from projections.department_sales import department_sales
from projections.store_daily import store_daily

__all__ = ["app"]

app = App("reports", partitions=12, views=[store_daily, department_sales])
