"""Python's types as Arrow's, so that events and states become typed DataFrame columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import pyarrow as pa
from pydantic_core import to_json

from leftfold.storage import is_record, record_fields

__all__ = ["DECIMAL", "arrow_type", "arrow_value"]

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
}


def arrow_type(type_: Any) -> pa.DataType:
    """The column type of a Python type: records are structs, tuples and sets arrays; what has no type of its own, such
    as a union of classes, is a JSON string.
    """
    origin, args = get_origin(type_), get_args(type_)
    if type_ in _SCALARS:
        return _SCALARS[type_]
    if origin is Annotated:
        return pa.string() if args[0] is Decimal and not _fits(args[1:]) else arrow_type(args[0])
    if origin in (Union, UnionType):
        some = [arg for arg in args if arg is not NoneType]
        return arrow_type(some[0]) if len(some) == 1 else pa.string()
    if origin in (frozenset, list) or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return pa.list_(arrow_type(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return pa.map_(arrow_type(args[0]), arrow_type(args[1]))
    if is_record(type_):
        fields: Any = [(name, arrow_type(hint)) for name, hint in record_fields(type_).items()]
        return pa.struct(fields)
    return pa.string()


def _fits(constraints: tuple[Any, ...]) -> bool:
    """Whether a Decimal so constrained, if it is, always fits our column; otherwise it is text, with all its digits."""
    told = [part for one in constraints for part in (one, *getattr(one, "metadata", ()))]
    places = max((getattr(part, "decimal_places", None) or 0 for part in told), default=0)
    digits = max((getattr(part, "max_digits", None) or 0 for part in told), default=0)
    return places <= DECIMAL.scale and digits - places <= DECIMAL.precision - DECIMAL.scale


def arrow_value(value: Any, type_: pa.DataType) -> Any:
    """The value as Arrow takes it for this type."""
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
        return str(value) if isinstance(value, UUID | time | Decimal) else to_json(value).decode()
    return value
