"""The log as DataFrames: events and states of a category, and one table per event type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold.engine.processing.stream_state import MARK, StreamCodec
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.messages import Event
from leftfold.model.typing import flat, is_record, record_fields
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.ports.protocols import RawRecord
from leftfold.spark.core.offsets import check_start, first_offsets, kafka_source
from leftfold.spark.core.task_io import Batches, SkippedValues
from leftfold.spark.tables.columns import METADATA_COLUMNS, EventTable, arrow_type, arrow_value, metadata_types
from leftfold.spark.tables.log_frames import Row, log_frame, table_of, whole_log

__all__ = ["EventTables", "event_tables", "events", "states", "typed"]


_STATE: list[Any] = [
    ("_key", pa.string()),
    ("_type", pa.string()),
    ("_version", pa.int64()),
    ("_partition", pa.int32()),
    ("_offset", pa.int64()),
]


def events(spark: SparkSession, app: App, category: str, log: Mapping[str, str] | OpenBulkLog) -> DataFrame:
    """The committed events of a category as a DataFrame, from the first to the last at this moment.

    One row per event: its type, key, time, sequence, place and ids in columns that begin with `_`, then the fields of
    all event classes, upcast to their newest version and typed; money is decimal(38,10), a field that an event does
    not have is null.

    Args:
        log: a function that opens the log, as `leftfold.runtime.connect.open_bulk(kafka_settings(), archive)` returns
            it: it needs no jars and reads the past from the archive. Or the properties of a Java client, such as
            `KafkaSettings(...).java()`: then Spark's own connector reads the topic, and the session needs its jars:
            `open_session(SparkSettings(jars=leftfold.local.spark_jars()))`.

    Raises:
        LogGap: the first events were deleted from the topic, and no archive has them. Spark fails when that happens
            later.
    """
    topic, (schema, row) = names.events(category), event_rows(app, category)
    if not isinstance(log, Mapping):
        return log_frame(spark, whole_log(log, topic), schema, row)
    partitions = check_start(spark, topic, log)
    starts = first_offsets(topic, partitions)
    return typed(kafka_source(spark.read, [topic], log, startingOffsets=starts, endingOffsets="latest"), schema, row)


def event_rows(app: App, category: str) -> tuple[pa.Schema, Row]:
    """The columns of a category's events, and the function that makes rows."""
    classes = _event_classes(app, category)
    codec: MessageCodec[Any] = MessageCodec(classes)
    columns = _columns(classes)

    def row(record: RawRecord) -> Mapping[str, Any] | None:
        # A record with the key of the changelog checkpoint ends a transaction that a broker forgot; it is no event.
        found = read_recorded(codec, record) if record.key != MARK else None
        if found is None:
            return None
        metadata = {name: value_of(found) for name, (_, value_of) in METADATA_COLUMNS.items()}
        return metadata | {name: arrow_value(getattr(found.event, name, None), type_) for name, type_ in columns}

    schema: list[Any] = [*metadata_types(METADATA_COLUMNS).items(), *columns]
    return pa.schema(schema), row


def states(spark: SparkSession, app: App, category: str, kafka: Mapping[str, str]) -> DataFrame:
    """The latest state of every stream of a category as a DataFrame, from its compacted topic.

    One row per stream: key, version and place, the state's class in `_type`, then the fields of all classes it may be,
    or the whole state as JSON in `state` where it is no record. `kafka` as for `events`.
    """
    decider = app.decider(category)
    classes = [kind for kind in flat(decider.state.type) if is_record(kind)]
    columns = _columns(classes) if classes else [("state", pa.string())]
    codec = StreamCodec(decider.state, decider.initial_state)

    def row(record: RawRecord) -> Mapping[str, Any] | None:
        if record.value is None:
            return None
        stream = codec.decode(record.value, 0.0)
        state = (
            {name: arrow_value(getattr(stream.state, name, None), type_) for name, type_ in columns}
            if classes
            else {"state": decider.state.encode(stream.state).decode()}
        )
        named = type(stream.state).__name__ if stream.state is not None else None
        place = {"_key": (record.key or b"").decode(), "_version": stream.version, "_type": named}
        return {**place, "_partition": record.partition, "_offset": record.offset, **state}

    raw = kafka_source(spark.read, [names.state(category, decider.version)], kafka, endingOffsets="latest")
    raw = raw.where(raw.key != bytearray(MARK))
    latest = raw.groupBy("key").agg({"offset": "max"}).withColumnRenamed("max(offset)", "offset")
    return typed(raw.join(latest, ["key", "offset"], "left_semi"), pa.schema([*_STATE, *columns]), row)


def _columns(classes: Iterable[Any]) -> list[tuple[str, pa.DataType]]:
    """The fields of all these classes; text where two of them disagree on a field's type."""
    found: dict[str, pa.DataType] = {}
    for cls in classes:
        for name, hint in record_fields(cls).items():
            type_ = arrow_type(hint)
            found[name] = type_ if found.get(name, type_) == type_ else pa.string()
    return list(found.items())


def _event_classes(app: App, category: str) -> list[Any]:
    readers = [d.events for d in app.deciders if d.name == category] or [v.events for v in app.views]
    found = dict.fromkeys(cls for classes in readers for cls in classes if cls.__leftfold__.category == category)
    if not found:
        app.decider(category)
    return list(found)


def typed(frame: DataFrame, schema: pa.Schema, row: Row, misfits: SkippedValues | None = None) -> DataFrame:
    """The records of Spark's Kafka source as rows of a schema.

    Args:
        misfits: as of `table_of`.
    """

    def convert(batches: Batches) -> Batches:
        tuned_gc()
        for batch in batches:
            yield table_of((_record_of(fields) for fields in batch.to_pylist()), schema, row, misfits)

    chosen = frame.select("topic", "partition", "offset", "key", "value", "headers")
    return chosen.mapInArrow(convert, from_arrow_schema(schema))


def _record_of(fields: Mapping[str, Any]) -> RawRecord:
    """The record in a row of Spark's Kafka source."""
    headers = [(header["key"], header["value"] or b"") for header in fields["headers"] or ()]
    return RawRecord(fields["topic"], fields["partition"], fields["offset"], fields["key"], fields["value"], headers)


class EventTables(dict[str, DataFrame]):
    """DataFrames by table name; `misfits` lists the events that were skipped, as far as the tables were read."""

    def __init__(self, misfits: SkippedValues) -> None:
        super().__init__()
        self.misfits = misfits


def event_tables(spark: SparkSession, app: App, open_log: OpenBulkLog) -> EventTables:
    """One table for every event type, with typed fields and its place in the log, and one for every category.

    A table has the type's wire name, or `category_Name` where two categories have one name; Spark ignores case. All
    tables end where the log was stable at this call. An event with a value that does not fit its column is skipped and
    listed in `misfits`.

    Raises:
        InfrastructureError: the first records of a topic were deleted.
    """
    deciders = [cls for decider in app.deciders for cls in decider.events]
    classes: list[type[Event]] = list(dict.fromkeys([*deciders, *(cls for view in app.views for cls in view.events)]))
    categories = sorted({cls.__leftfold__.category for cls in classes})
    logs = {category: whole_log(open_log, names.events(category)) for category in categories}
    found = EventTables(misfits := SkippedValues(spark))
    for category in categories:
        found[category] = log_frame(spark, logs[category], *event_rows(app, category), misfits=misfits)
    for name, cls in _named(classes, categories).items():
        table = EventTable(cls)
        found[name] = log_frame(spark, logs[cls.__leftfold__.category], table.schema, table.row, misfits=misfits)
    return found


def _named(classes: Iterable[type[Event]], categories: Iterable[str]) -> dict[str, Any]:
    classes = list(classes)
    counts = Counter([cls.__leftfold__.name.lower() for cls in classes] + [category.lower() for category in categories])
    return {
        spec.name if counts[spec.name.lower()] == 1 else f"{spec.category}_{spec.name}": cls
        for cls in classes
        for spec in [cls.__leftfold__]
    }
