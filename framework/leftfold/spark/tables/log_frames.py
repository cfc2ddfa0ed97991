"""The log as DataFrames read by Leftfold's own reader, which uses the archive and refuses gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold.engine.log_gaps import check_complete
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.errors import ContractError
from leftfold.model.position import Recorded
from leftfold.ports.bulk import OffsetRange, OpenBulkLog, read_range
from leftfold.ports.protocols import RawRecord
from leftfold.spark.core.task_io import Address, Batches, ProgressReporter, SkippedValues, batches_by_size, rows_in

__all__ = ["LogSlice", "Row", "log_frame", "table_of", "tables_of", "whole_log"]

Row = Callable[[RawRecord], Mapping[str, Any] | None]
"""Makes a table row from a record, or None when the record is not in the table."""
_SHOWN = 100
_UNFIT = (pa.ArrowException, OverflowError, UnicodeEncodeError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (
    (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    for at in (datetime.min, datetime.max)  # noqa: DTZ901
)
P = TypeVar("P", bound=RawRecord | Recorded[Any])


@dataclass(frozen=True)
class LogSlice:
    """Offset ranges of the log for tasks to read, with the function that opens a reader; it can be pickled."""

    tasks: tuple[tuple[OffsetRange, ...], ...]
    open_log: OpenBulkLog

    def of(self, topic: str) -> LogSlice:
        """The ranges of one topic."""
        tasks = (tuple(part for part in task if part.topic == topic) for task in self.tasks)
        return LogSlice(tuple(task for task in tasks if task), self.open_log)


def whole_log(open_log: OpenBulkLog, topic: str) -> LogSlice:
    """All records of a topic and its archive up to the stable end, with one task per partition.

    Raises:
        InfrastructureError: the first records were deleted.
    """
    with closing(open_log()) as log:
        ends = log.stable_ends([topic]).offsets.get(topic, {})
        parts = [OffsetRange(topic, partition, 0, end) for partition, end in sorted(ends.items()) if end > 0]
        check_complete(log, parts)
    return LogSlice(tuple((part,) for part in parts), open_log)


def log_frame(
    spark: SparkSession,
    log: LogSlice,
    schema: pa.Schema,
    row: Row,
    address: Address | None = None,
    misfits: SkippedValues | None = None,
) -> DataFrame:
    """The records of a log slice as a DataFrame; nothing is read before Spark needs it.

    Args:
        address: where progress is sent; None = nowhere. misfits: as of `table_of`.
    """
    tasks, open_log = log.tasks, log.open_log
    if not tasks:
        return spark.createDataFrame([], from_arrow_schema(schema))

    def read(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for (number,) in rows_in(batches) for part in tasks[number]]
        with closing(open_log()) as reader, _reporter(address) as tell:
            records = chain.from_iterable(read_range(reader, part, tell) for part in parts)
            yield from tables_of(records, schema, row, misfits)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, from_arrow_schema(schema))


def tables_of(records: Iterable[RawRecord], schema: pa.Schema, row: Row, misfits: SkippedValues | None) -> Batches:
    """Records as Arrow batches, which end after 5,000 of them or 16 MB."""
    for batch in batches_by_size(records, lambda record: len(record.value or b"")):
        yield table_of(batch, schema, row, misfits)


def table_of(
    records: Iterable[P],
    schema: pa.Schema,
    row: Callable[[P], Mapping[str, Any] | None],
    misfits: SkippedValues | None = None,
) -> pa.RecordBatch:
    """Some records as an Arrow batch.

    Args:
        misfits: collects events that are skipped, since a value does not fit its column; None = they are refused.

    Raises:
        ContractError: a value does not fit its column, such as a Decimal of more than 10 places.
    """
    pairs = [(record, found) for record in records if (found := row(record)) is not None]
    try:
        return _batch([found for _, found in pairs], schema)
    except _UNFIT:
        return _batch([found for record, found in pairs if _fits(record, found, schema, misfits)], schema)


def _reporter(address: Address | None) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda count: None) if address is None else closing(ProgressReporter(address))


def _fits(
    record: RawRecord | Recorded[Any], found: Mapping[str, Any], schema: pa.Schema, misfits: SkippedValues | None
) -> bool:
    for field in schema:
        try:
            _batch([found], pa.schema([field]))
        except _UNFIT as error:
            place = f"{record.topic}[{record.partition}]@{record.offset}" if record.topic else f"event {record.offset}"
            if misfits is not None:
                misfits.add(place, field.name)
                return False
            value = _brief(found.get(field.name))
            raise ContractError(
                f"{place}: {field.name} = {value} does not fit its column of type {field.type}: {error}"
            ) from error
    return True


def _batch(rows: list[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch; refuses times outside of Python's years 1 to 9999, which Spark's Python tasks cannot read."""
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            ends: Any = pc.min_max(column.cast(pa.int64())).as_py()
            if ends["min"] is not None and (ends["min"] < _FIRST or ends["max"] > _LAST):
                raise OverflowError("it is not within the years 1 to 9999 in UTC")
    return batch


def _brief(value: Any) -> str:
    try:
        return repr(value)[:_SHOWN]
    except ValueError:  # Python refuses to print an integer of more than 4,300 digits
        return "a number of very many digits"
