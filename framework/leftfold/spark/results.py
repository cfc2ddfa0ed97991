"""The columns of a result against the row of a view, and its rows as Python values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from leftfold.errors import ConfigurationError, ContractError
from leftfold.query import TableView
from leftfold.storage import is_record, record_fields

__all__ = ["RowReader", "check_columns"]

_WORDS: Mapping[Any, str] = {
    str: "STRING", int: "BIGINT", bool: "BOOLEAN", Decimal: "DECIMAL(18, 2)", datetime: "TIMESTAMP", date: "DATE",
    UUID: "STRING",
}  # fmt: skip


def check_columns(view: TableView[Any, Any], schema: StructType) -> None:
    """Checks names and types of a result's columns.

    Raises:
        ConfigurationError: the row has other fields or types; the message names every one of them.
    """
    row = view.rows.row
    hints, found = record_fields(row), {field.name: field for field in schema}
    wrong = [f"no column {name} for {row.__name__}.{name}" for name in hints if name not in found]
    wrong += [f"column {name} is no field of {row.__name__}" for name in found if name not in hints]
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    wrong += [f"several columns are named {name}" for name in twice]
    types = {field.name: field.type for field in to_arrow_schema(schema, timezone="UTC")}
    for name in hints.keys() & found.keys():
        if not _fits(hints[name], types[name]):
            told = found[name].dataType.simpleString().upper()
            wrong.append(
                f"column {name} is {told}, but {row.__name__}.{name} is {_said(hints[name])}{_mend(hints[name])}"
            )
    if wrong:
        raise ConfigurationError(f"view {view.name}: the query does not give its row: {'; '.join(sorted(wrong))}")


class RowReader:
    """Makes rows of Arrow batches; it can be pickled."""

    def __init__(self, view: TableView[Any, Any]) -> None:
        self._view = view

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._view.rows.row)

    def rows(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """The rows of a batch.

        Raises:
            ContractError: a column is NULL where the row's field cannot be None, or holds what the field refuses.
        """
        validate = self._adapter.validate_python
        for values in batch.to_pylist(maps_as_pydicts="strict"):
            try:
                yield validate(values)
            except ValidationError as error:
                raise ContractError(self._said(values, error)) from error

    def _said(self, values: Mapping[str, Any], error: ValidationError) -> str:
        problem = error.errors(include_url=False, include_context=False)[0]
        place, row = ".".join(map(str, problem["loc"])), self._view.rows.row.__name__
        if problem["input"] is None:
            why = f"column {place} is NULL, but {row}.{place} cannot be None; COALESCE it, or make the field X | None"
        else:
            why = f"column {place} holds {problem['input']!r}: {problem['msg']}"
        return f"view {self._view.name}: {why} (in {dict(values)!r})"


def _fits(hint: Any, type_: pa.DataType) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(args[0], type_)
    if origin in (Union, UnionType):
        some = [arg for arg in args if arg is not NoneType]
        return len(some) == 1 and _fits(some[0], type_)
    if origin is frozenset or (origin is tuple and len(args) == 2 and args[1] is Ellipsis):
        return pa.types.is_list(type_) and _fits(args[0], type_.value_type)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return pa.types.is_map(type_) and _fits(args[0], type_.key_type) and _fits(args[1], type_.item_type)
    if is_record(hint):
        hints = record_fields(hint)
        fields = {field.name: field.type for field in type_} if pa.types.is_struct(type_) else {}
        return fields.keys() == hints.keys() and all(_fits(hints[name], fields[name]) for name in hints)
    return _is_scalar(hint, type_)


def _is_scalar(hint: Any, type_: pa.DataType) -> bool:
    if hint is datetime:
        return pa.types.is_timestamp(type_) and type_.tz is not None
    tests: dict[Any, Any] = {
        int: pa.types.is_integer,
        bool: pa.types.is_boolean,
        Decimal: pa.types.is_decimal,
        date: pa.types.is_date,
    }
    if hint in tests:
        return bool(tests[hint](type_))
    is_text = hint in (str, UUID) or (isinstance(hint, type) and issubclass(hint, Enum))
    return is_text and pa.types.is_string(type_)


def _said(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _mend(hint: Any) -> str:
    inner = next((arg for arg in get_args(hint) if arg is not NoneType), hint)
    word = _WORDS.get(inner)
    return f" (CAST it AS {word})" if word else ""
