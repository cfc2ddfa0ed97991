"""Tables that queries read: one per event class, whatever reads the log for it, and one per reference file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession

from leftfold.codec import MessageCodec, header, read_recorded
from leftfold.envelope import Recorded
from leftfold.errors import ConfigurationError, ContractError
from leftfold.messages import Event
from leftfold.ports import RawRecord
from leftfold.query import METADATA
from leftfold.reference import ReferenceFile
from leftfold.spark.columns import arrow_type, arrow_value
from leftfold.spark.metadata import METADATA_COLUMNS, metadata_types
from leftfold.storage import record_fields

__all__ = ["EventTable", "reference_frame"]


class EventTable:
    """The events of one class as rows: their fields, upcast and typed, and their metadata.

    Args:
        wanted: the columns that are read, in lower case; None = all of them.
    """

    def __init__(self, event: type[Event], wanted: frozenset[str] | None = None) -> None:
        self.event = event
        spec = event.__leftfold__
        self._prefix = f"{spec.category}.{spec.name}.v".encode()
        hints = {name: hint for name, hint in record_fields(event).items() if name in event.model_fields}
        types = {name: arrow_type(hint) for name, hint in hints.items()} | metadata_types(METADATA)
        chosen: Any = [(name, type_) for name, type_ in types.items() if wanted is None or name.lower() in wanted]
        # A table without columns could not say how many rows it has.
        self.schema = pa.schema(chosen or [("_offset", pa.int64())])

    @cached_property
    def _codec(self) -> MessageCodec[Any]:
        return MessageCodec([self.event])

    def row(self, record: RawRecord) -> Mapping[str, Any] | None:
        """What the table has of a record, None when that is no event of this class, whatever its version.

        Raises:
            ContractError: it cannot be read.
        """
        type_ = dict(record.headers or ()).get("ce_type") or b""
        return self.told(self._read(record)) if type_.startswith(self._prefix) else None

    def told(self, recorded: Recorded[Any]) -> Mapping[str, Any]:
        """An event as a row."""
        return {column.name: _value(recorded, column) for column in self.schema}

    def _read(self, record: RawRecord) -> Recorded[Any]:
        try:
            found = read_recorded(self._codec, record)
            if found is None:
                raise ContractError(f"{header(record.headers, 'ce_type')!r} is not of the form category.Name.v1")
        except ContractError as error:
            place = f"{record.topic}[{record.partition}]@{record.offset}"
            raise ContractError(f"table {self.event.__leftfold__.name} stops at {place}: {error}") from error
        return found


def _value(recorded: Recorded[Any], column: pa.Field[Any]) -> Any:
    told = METADATA_COLUMNS.get(column.name)
    if told is not None:
        return told[1](recorded)
    return arrow_value(getattr(recorded.event, column.name), column.type)


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
