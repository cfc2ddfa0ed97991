"""Tables that queries read: one per event class, read from the log by our own code, and one per reference file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold.codec import MessageCodec, header, read_recorded
from leftfold.engine.bulk_log import BulkLog, Range, raw
from leftfold.envelope import Recorded
from leftfold.errors import ConfigurationError, ContractError
from leftfold.garbage import tuned_gc
from leftfold.messages import Event
from leftfold.ports import Headers, RawRecord
from leftfold.reference import ReferenceFile
from leftfold.spark.columns import arrow_type, arrow_value
from leftfold.spark.progress import Address, Teller
from leftfold.storage import record_fields

__all__ = ["EventTable", "LogSlice", "event_frame", "reference_frame"]

Batches = Iterator[pa.RecordBatch]
_MANY = 5_000
_METADATA: dict[str, tuple[pa.DataType, Callable[[Recorded[Any]], Any]]] = {
    "_key": (pa.string(), lambda recorded: recorded.key),
    "_time": (pa.timestamp("us", tz="UTC"), lambda recorded: recorded.time),
    "_sequence": (pa.int64(), lambda recorded: recorded.version),
    "_partition": (pa.int32(), lambda recorded: recorded.partition),
    "_offset": (pa.int64(), lambda recorded: recorded.offset),
}


class EventTable:
    """The events of one class as Arrow batches: their fields, upcast and typed, and their metadata.

    Args:
        wanted: the columns that are read, in lower case; None = all of them.
    """

    def __init__(self, event: type[Event], wanted: frozenset[str] | None = None) -> None:
        self.event = event
        spec = event.__leftfold__
        self._prefix = f"{spec.category}.{spec.name}.v".encode()
        hints = {name: hint for name, hint in record_fields(event).items() if name in event.model_fields}
        types = {name: arrow_type(hint) for name, hint in hints.items()} | {n: t for n, (t, _) in _METADATA.items()}
        chosen: Any = [(name, type_) for name, type_ in types.items() if wanted is None or name.lower() in wanted]
        # A table without columns could not say how many rows it has.
        self.schema = pa.schema(chosen or [("_offset", pa.int64())])

    @cached_property
    def _codec(self) -> MessageCodec[Any]:
        return MessageCodec([self.event])

    def wants(self, headers: Headers | None) -> bool:
        """Whether a record with these headers is an event of this class, whatever its version."""
        return bool(headers) and (dict(headers or ()).get("ce_type") or b"").startswith(self._prefix)

    def read(self, record: RawRecord) -> Recorded[Any]:
        """The event behind a record of this class.

        Raises:
            ContractError: it cannot be read.
        """
        try:
            found = read_recorded(self._codec, record)
            if found is None:
                raise ContractError(f"{header(record.headers, 'ce_type')!r} is not of the form category.Name.v1")
        except ContractError as error:
            place = f"{record.topic}[{record.partition}]@{record.offset}"
            raise ContractError(f"table {self.event.__leftfold__.name} stops at {place}: {error}") from error
        return found

    def batch(self, found: Sequence[Recorded[Any]]) -> pa.RecordBatch:
        """Some events as a batch.

        Raises:
            ContractError: a value does not fit its column, such as a Decimal with more than ten places.
        """
        columns: list[Any] = []
        for column in self.schema:
            try:
                columns.append(pa.array([_value(one, column) for one in found], column.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                name = f"{self.event.__leftfold__.name}.{column.name}"
                raise ContractError(f"a value of {name} does not fit {column.type}: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _value(recorded: Recorded[Any], column: pa.Field[Any]) -> Any:
    told = _METADATA.get(column.name)
    if told is not None:
        return told[1](recorded)
    return arrow_value(getattr(recorded.event, column.name), column.type)


@dataclass(frozen=True)
class LogSlice:
    """Ranges of the log for tasks to read, with what makes a reader; everything can be pickled."""

    tasks: tuple[tuple[Range, ...], ...]
    open_log: Callable[[], BulkLog]

    def of(self, topic: str) -> LogSlice:
        """Only the ranges of one topic."""
        tasks = (tuple(part for part in task if part.topic == topic) for task in self.tasks)
        return LogSlice(tuple(task for task in tasks if task), self.open_log)


def event_frame(spark: SparkSession, table: EventTable, log: LogSlice, address: Address | None = None) -> DataFrame:
    """The events of one class within a slice of the log.

    Args:
        address: where progress is told; None = nowhere.
    """
    tasks, open_log = log.tasks, log.open_log

    def read(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for number in _numbers(batches) for part in tasks[number]]
        found: list[Recorded[Any]] = []
        with closing(open_log()) as reader:
            for record in _records(reader, parts, table, address):
                found.append(table.read(record))
                if len(found) >= _MANY:
                    yield table.batch(found)
                    found.clear()
        yield table.batch(found)

    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(read, from_arrow_schema(table.schema))


def _records(log: BulkLog, parts: Iterable[Range], table: EventTable, address: Address | None) -> Iterator[RawRecord]:
    teller = Teller(address) if address is not None else None
    try:
        for part in parts:
            for records in log.read(part):
                for record in records:
                    if table.wants(record.headers()):
                        yield raw(part, record)
                if teller is not None:
                    teller(len(records))
    finally:
        if teller is not None:
            teller.close()


def reference_frame(spark: SparkSession, file: ReferenceFile, where: str) -> DataFrame:
    """A reference file as it is now, with the columns that its record declares.

    Raises:
        ConfigurationError: the file is not there, lacks a column, or holds values of another type.
    """
    path = file.locate()
    schema = pa.schema([(name, arrow_type(hint)) for name, hint in record_fields(file.row).items()])
    try:
        if file.format == "csv":
            types = pyarrow.csv.ConvertOptions(column_types=schema, include_columns=schema.names)
            table = pyarrow.csv.read_csv(path, convert_options=types)
        else:
            table = pyarrow.parquet.read_table(path, columns=schema.names)
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise ConfigurationError(f"{where}: {file.path} has no column {', '.join(missing)}")
        return spark.createDataFrame(table.select(schema.names).cast(schema))
    except (pa.ArrowException, KeyError) as error:
        raise ConfigurationError(f"{where}: {file.path} is not what {file.row.__name__} says: {error}") from error


def _numbers(batches: Batches) -> list[int]:
    return [int(number) for batch in batches for number in batch.column(0).to_pylist() if number is not None]
