"""Every event type of an App as a table, and every category as one with all of its types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from leftfold import names
from leftfold.app import App
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.messages import Event
from leftfold.spark.frames import event_rows
from leftfold.spark.logframes import log_frame, whole_log
from leftfold.spark.tables import EventTable

__all__ = ["event_tables"]


def event_tables(spark: SparkSession, app: App, open_log: OpenBulkLog) -> dict[str, DataFrame]:
    """A table for every event type, with its typed fields and its place in the log, and one for every category.

    A type is called by its wire name, or `category_Name` where two categories have one name; Spark does not tell
    upper from lower case. All tables end where the log was stable when this was called.

    Raises:
        InfrastructureError: the first records of a topic are gone.
    """
    classes = _classes(app)
    categories = sorted({cls.__leftfold__.category for cls in classes})
    logs = {category: whole_log(open_log, names.events(category)) for category in categories}
    found = {category: log_frame(spark, logs[category], *event_rows(app, category)) for category in categories}
    for name, cls in _named(classes, categories).items():
        table = EventTable(cls)
        found[name] = log_frame(spark, logs[cls.__leftfold__.category], table.schema, table.row)
    return found


def _classes(app: App) -> list[type[Event]]:
    deciders = [cls for decider in app.deciders for cls in decider.events]
    return list(dict.fromkeys([*deciders, *(cls for view in app.views for cls in view.events)]))


def _named(classes: Iterable[type[Event]], categories: Iterable[str]) -> dict[str, Any]:
    classes = list(classes)
    counts = Counter([cls.__leftfold__.name.lower() for cls in classes] + [category.lower() for category in categories])
    return {
        spec.name if counts[spec.name.lower()] == 1 else f"{spec.category}_{spec.name}": cls
        for cls in classes
        for spec in [cls.__leftfold__]
    }
