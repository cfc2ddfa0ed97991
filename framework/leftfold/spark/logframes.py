"""The log as DataFrames that our own reader fills, so that an archive counts and a hole is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leftfold.engine.bulk_log import OpenBulkLog, Range, raw
from leftfold.engine.hole import check_whole
from leftfold.engine.statemark import MARK
from leftfold.process import tuned_gc

__all__ = ["RECORD", "log_frame", "log_parts"]

Batches = Iterator[pa.RecordBatch]
RECORD = (
    "topic string, partition int, offset long, key binary, value binary, headers array<struct<key: string, value: binary>>"
)
_HEADERS: Any = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_FIELDS: list[Any] = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", _HEADERS),
]
_SCHEMA = pa.schema(_FIELDS)


def log_parts(open_log: OpenBulkLog, topic: str) -> list[Range]:
    """Everything that a topic and its archive hold now, up to where it is stable, partition by partition.

    Raises:
        InfrastructureError: the first records are gone.
    """
    log = open_log()
    try:
        ends = log.stable_ends([topic]).offsets[topic]
        parts = [Range(topic, partition, 0, end) for partition, end in sorted(ends.items()) if end > 0]
        check_whole(log, parts)
        return parts
    finally:
        log.close()


def log_frame(spark: SparkSession, open_log: OpenBulkLog, parts: Sequence[Range]) -> DataFrame:
    """The records of these ranges, a task each, with the columns that Spark's own connector has for them."""
    if not parts:
        return spark.createDataFrame([], RECORD)

    def read(batches: Batches) -> Batches:
        tuned_gc()
        log = open_log()
        try:
            numbers = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for part in (parts[int(number or 0)] for number in numbers):
                for records in log.read(part):
                    # A record with the key of marks ends a transaction that a broker forgot; it is no event.
                    rows = [_row(record) for record in (raw(part, r) for r in records) if record.key != MARK]
                    yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)
        finally:
            log.close()

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, RECORD)


def _row(record: Any) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return {**place, "key": record.key, "value": record.value, "headers": headers}
