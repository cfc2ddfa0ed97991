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
from leftfold.spark.misfits import Misfits
from leftfold.spark.tables import EventTable

__all__ = ["EventTables", "event_tables"]


class EventTables(dict[str, DataFrame]):
    """Tables by name; `misfits` tells which events they passed over, as far as they were read."""

    def __init__(self, misfits: Misfits) -> None:
        super().__init__()
        self.misfits = misfits


def event_tables(spark: SparkSession, app: App, open_log: OpenBulkLog) -> EventTables:
    """A table for every event type, with its typed fields and its place in the log, and one for every category.

    A type is called by its wire name, or `category_Name` where two categories have one name; Spark does not tell
    upper from lower case. All tables end where the log was stable when this was called. An event of which a value does
    not fit its column is passed over and told by `misfits`.

    Raises:
        InfrastructureError: the first records of a topic are gone.
    """
    classes = _classes(app)
    categories = sorted({cls.__leftfold__.category for cls in classes})
    logs = {category: whole_log(open_log, names.events(category)) for category in categories}
    found = EventTables(misfits := Misfits(spark))
    for category in categories:
        found[category] = log_frame(spark, logs[category], *event_rows(app, category), misfits=misfits)
    for name, cls in _named(classes, categories).items():
        table = EventTable(cls)
        found[name] = log_frame(spark, logs[cls.__leftfold__.category], table.schema, table.row, misfits=misfits)
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
