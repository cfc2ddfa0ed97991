"""Python types as Arrow types: the columns of event tables, metadata columns and reference tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic_core import to_json
from pyspark.sql import DataFrame, SparkSession

from leftfold.errors import ContractError
from leftfold.model.computed_views import METADATA, ReferenceFile, UnusableReference
from leftfold.model.messages import Event
from leftfold.model.position import Recorded
from leftfold.model.typing import bare_type, is_record, record_fields
from leftfold.ports.message_codec import MessageCodec, header, read_recorded
from leftfold.ports.protocols import RawRecord

__all__ = [
    "METADATA_COLUMNS",
    "EventTable",
    "arrow_type",
    "arrow_value",
    "metadata_types",
    "reference_frame",
    "reference_table",
]


DECIMAL = pa.decimal128(38, 10)
_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    bool: pa.bool_(),
    float: pa.float64(),
    Decimal: DECIMAL,
    datetime: pa.timestamp("us", tz="UTC"),
    date: pa.date32(),
    time: pa.string(),
    UUID: pa.string(),
    bytes: pa.binary(),
}


def arrow_type(type_: Any, within: frozenset[Any] = frozenset()) -> pa.DataType:
    """The column type of a Python type: records are structs, tuples and sets arrays, mappings maps.

    A type without a counterpart, such as a union of classes or a record inside itself, becomes a JSON string.

    Args:
        within: the records that the type is a part of.
    """
    type_ = bare_type(type_)
    origin, args = get_origin(type_), get_args(type_)
    if type_ in _SCALARS:
        return _SCALARS[type_]
    if origin is Annotated:
        return pa.string() if bare_type(args[0]) is Decimal and not _fits(args[1:]) else arrow_type(args[0], within)
    if origin in (Union, UnionType):
        some = [arg for arg in args if arg is not NoneType]
        return arrow_type(some[0], within) if len(some) == 1 else pa.string()
    if origin in (frozenset, list) or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return pa.list_(arrow_type(args[0], within))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return pa.map_(arrow_type(args[0], within), arrow_type(args[1], within))
    if is_record(type_) and type_ not in within:
        fields: Any = [(name, arrow_type(hint, within | {type_})) for name, hint in record_fields(type_).items()]
        return pa.struct(fields)
    return pa.string()


def _fits(constraints: tuple[Any, ...]) -> bool:
    """Whether a Decimal with these constraints always fits DECIMAL; otherwise it becomes text, with all its digits."""
    parts = [part for one in constraints for part in (one, *getattr(one, "metadata", ()))]
    places = max((getattr(part, "decimal_places", None) or 0 for part in parts), default=0)
    digits = max((getattr(part, "max_digits", None) or 0 for part in parts), default=0)
    return places <= DECIMAL.scale and digits - places <= DECIMAL.precision - DECIMAL.scale


def arrow_value(value: Any, type_: pa.DataType) -> Any:
    """The value in the form that Arrow takes for this type."""
    if value is None:
        return None
    if isinstance(type_, pa.StructType):
        return {field.name: arrow_value(getattr(value, field.name), field.type) for field in type_}
    if isinstance(type_, pa.ListType):
        return [arrow_value(item, type_.value_type) for item in value]
    if isinstance(type_, pa.MapType):
        return [(arrow_value(k, type_.key_type), arrow_value(v, type_.item_type)) for k, v in value.items()]
    if pa.types.is_string(type_) and not isinstance(value, str):
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, UUID | time | Decimal):
            return str(value)
        text = to_json(value, bytes_mode="base64").decode()
        return text.strip('"') if isinstance(value, date | bytes) else text
    return value


_TIME = pa.timestamp("us", tz="UTC")


def _type_of(recorded: Recorded[Any]) -> str:
    spec = type(recorded.event).__leftfold__
    return f"{spec.name}.v{spec.version}"


METADATA_COLUMNS: Mapping[str, tuple[pa.DataType, Callable[[Recorded[Any]], Any]]] = {
    "_type": (pa.string(), _type_of),
    "_key": (pa.string(), lambda recorded: recorded.key),
    "_time": (_TIME, lambda recorded: recorded.time),
    "_sequence": (pa.int64(), lambda recorded: recorded.version),
    "_partition": (pa.int32(), lambda recorded: recorded.partition),
    "_offset": (pa.int64(), lambda recorded: recorded.offset),
    "_id": (pa.string(), lambda recorded: recorded.id),
    "_correlation": (pa.string(), lambda recorded: recorded.correlation_id),
    "_causation": (pa.string(), lambda recorded: recorded.causation_id),
}
"""The type of each metadata column, and its value for an event."""


def metadata_types(names: Iterable[str]) -> dict[str, pa.DataType]:
    """Some metadata columns with their types, in the order of the names."""
    return {name: METADATA_COLUMNS[name][0] for name in names}


class EventTable:
    """The table of one event class: its fields, upcast and typed, and its metadata.

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
        """A record as a row; None when it is no event of this class, whatever its version.

        Raises:
            ContractError: it cannot be read.
        """
        type_ = dict(record.headers or ()).get("ce_type") or b""
        return self.row_of(self._read(record)) if type_.startswith(self._prefix) else None

    def row_of(self, recorded: Recorded[Any]) -> Mapping[str, Any]:
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
    metadata = METADATA_COLUMNS.get(column.name)
    if metadata is not None:
        return metadata[1](recorded)
    return arrow_value(getattr(recorded.event, column.name), column.type)


def reference_frame(spark: SparkSession, file: ReferenceFile, where: str) -> DataFrame:
    """The current contents of a reference file as a DataFrame.

    Raises:
        ConfigurationError: as for `reference_table`.
    """
    return spark.createDataFrame(reference_table(file, where))


def reference_table(file: ReferenceFile, where: str) -> pa.Table:
    """The current contents of a reference file, with the columns that its record declares.

    Raises:
        ConfigurationError: its package is not installed.
        UnusableReference: the file does not exist, cannot be read, lacks a column, or holds values of another type.
    """
    schema = pa.schema([(name, arrow_type(hint)) for name, hint in record_fields(file.row).items()])
    try:
        path = file.locate()
        if file.format == "csv":
            types = pyarrow.csv.ConvertOptions(column_types=schema, include_columns=schema.names)
            table = pyarrow.csv.read_csv(path, convert_options=types)
        else:
            table = pyarrow.parquet.read_table(path, columns=schema.names)
        missing = [name for name in schema.names if name not in table.column_names]
        if missing:
            raise UnusableReference(f"{where}: {file.path} has no column {', '.join(missing)}")
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise UnusableReference(f"{where}: {file.path} is not what {file.row.__name__} says: {error}") from error
