"""Every event type of an App as a table, and every category as one with all of its types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leftfold import names
from leftfold.app import App
from leftfold.codec import MessageCodec, read_recorded
from leftfold.engine.bulk_log import OpenBulkLog, Range
from leftfold.ports import RawRecord
from leftfold.spark.columns import arrow_type, arrow_value
from leftfold.spark.frames import event_rows
from leftfold.spark.logframes import Row, log_frame, log_parts
from leftfold.storage import record_fields

__all__ = ["event_tables"]

_PLACE: list[Any] = [
    ("_key", pa.string()),
    ("_time", pa.timestamp("us", tz="UTC")),
    ("_sequence", pa.int64()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
    ("_id", pa.string()),
]


def event_tables(spark: SparkSession, app: App, open_log: OpenBulkLog) -> dict[str, DataFrame]:
    """A table for every event type, with its typed fields and its place in the log, and one for every category.

    A type is called by its wire name, or `category_Name` where two categories have one name; Spark does not tell
    upper from lower case. All tables end where the log was stable when this was called.

    Raises:
        InfrastructureError: the first records of a topic are gone.
    """
    classes = _classes(app)
    categories = sorted({cls.__leftfold__.category for cls in classes})
    parts = {category: log_parts(open_log, names.events(category)) for category in categories}
    found = {c: log_frame(spark, open_log, parts[c], *event_rows(app, c)) for c in categories}
    for name, cls in _named(classes, categories).items():
        found[name] = _table(spark, open_log, parts[cls.__leftfold__.category], cls)
    return found


def _classes(app: App) -> list[Any]:
    deciders = [cls for decider in app.deciders for cls in decider.events]
    return list(dict.fromkeys([*deciders, *(cls for view in app.views for cls in view.events)]))


def _named(classes: Iterable[Any], categories: Iterable[str]) -> dict[str, Any]:
    classes = list(classes)
    counts = Counter([cls.__leftfold__.name.lower() for cls in classes] + [category.lower() for category in categories])
    return {
        spec.name if counts[spec.name.lower()] == 1 else f"{spec.category}_{spec.name}": cls
        for cls in classes
        for spec in [cls.__leftfold__]
    }


def _table(spark: SparkSession, open_log: OpenBulkLog, parts: list[Range], cls: Any) -> DataFrame:
    columns = [(name, arrow_type(hint)) for name, hint in record_fields(cls).items()]
    return log_frame(spark, open_log, parts, pa.schema([*columns, *_PLACE]), _row(cls, columns))


def _row(cls: Any, columns: list[tuple[str, pa.DataType]]) -> Row:
    codec: MessageCodec[Any] = MessageCodec([cls])

    def row(record: RawRecord) -> Mapping[str, Any] | None:
        found = read_recorded(codec, record)
        if found is None:
            return None
        place = {
            "_key": found.key,
            "_time": found.time,
            "_sequence": found.version,
            "_partition": record.partition,
            "_offset": record.offset,
            "_id": found.id,
        }
        return place | {name: arrow_value(getattr(found.event, name), type_) for name, type_ in columns}

    return row
