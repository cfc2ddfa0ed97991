"""The log as DataFrames that our own reader fills, so that an archive counts and a hole is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold.engine.bulk_log import OpenBulkLog, Range, raw
from leftfold.engine.hole import check_whole
from leftfold.engine.statemark import MARK
from leftfold.errors import ContractError
from leftfold.garbage import tuned_gc
from leftfold.ports import RawRecord

__all__ = ["Row", "log_frame", "log_parts", "table_of"]

Batches = Iterator[pa.RecordBatch]
Row = Callable[[RawRecord], Mapping[str, Any] | None]
"""What a table has of a record, None when nothing."""


def log_parts(open_log: OpenBulkLog, topic: str) -> list[Range]:
    """Everything that a topic and its archive hold now, up to where it is stable, partition by partition.

    Raises:
        InfrastructureError: the first records are gone.
    """
    log = open_log()
    try:
        ends = log.stable_ends([topic]).offsets.get(topic, {})
        parts = [Range(topic, partition, 0, end) for partition, end in sorted(ends.items()) if end > 0]
        check_whole(log, parts)
        return parts
    finally:
        log.close()


def log_frame(
    spark: SparkSession, open_log: OpenBulkLog, parts: Sequence[Range], schema: pa.Schema, row: Row
) -> DataFrame:
    """The records of these ranges as rows, a task for each range; nothing is read until somebody asks."""
    if not parts:
        return spark.createDataFrame([], from_arrow_schema(schema))

    def read(batches: Batches) -> Batches:
        tuned_gc()
        log = open_log()
        try:
            numbers = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
            for part in [parts[int(number or 0)] for number in numbers]:
                for records in log.read(part):
                    yield table_of((raw(part, record) for record in records), schema, row)
        finally:
            log.close()

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, from_arrow_schema(schema))


def table_of(records: Iterator[RawRecord], schema: pa.Schema, row: Row) -> pa.RecordBatch:
    """Some records as rows.

    Raises:
        ContractError: a value does not fit its column, such as a Decimal of more than 10 places.
    """
    # A record with the key of marks ends a transaction that a broker forgot; it is no event.
    told = [(record, found) for record in records if record.key != MARK and (found := row(record)) is not None]
    try:
        return pa.RecordBatch.from_pylist([found for _, found in told], schema=schema)
    except pa.ArrowException as error:
        for record, found in told:
            _check(record, found, schema, error)
        raise


def _check(record: RawRecord, found: Mapping[str, Any], schema: pa.Schema, cause: Exception) -> None:
    for field in schema:
        try:
            pa.array([found.get(field.name)], field.type)
        except pa.ArrowException as error:
            place, value = f"{record.topic}[{record.partition}]@{record.offset}", found.get(field.name)
            raise ContractError(
                f"{place}: {field.name} = {value!r} does not fit its column of type {field.type}: {error}"
            ) from cause
