"""Computes a view from tables of events, by SQL or by a DataFrame function, and checks its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.computed_views import METADATA, QueryView, ReferenceFile, TableView
from leftfold.model.messages import Event
from leftfold.model.typing import bare_type, is_record, record_fields
from leftfold.spark.sql.incremental import Refreshed, classify
from leftfold.spark.sql.parser import parse
from leftfold.spark.sql.rules import CheckedQuery, check
from leftfold.spark.tables.columns import EventTable, reference_frame

__all__ = ["FrameView", "RowReader", "checked", "compute", "own_session", "refreshed"]


E = TypeVar("E", bound=Event)
Row = TypeVar("Row")
K = TypeVar("K", default=str)
Tables = Mapping[str, DataFrame]
"""The tables of a view by name; a table is read only when it is used."""


class FrameView(TableView[Row, K]):
    """A view whose rows a DataFrame function computes, all of them again at every refresh.

    Args:
        frame: makes the result from the tables:
            `lambda tables: tables["BasketCheckedOut"].groupBy("store_id").count()`.
            It must give the same rows for the same events: no clock, no randomness, no order of arrival. Unlike SQL,
            this code is not checked.
        key, references, indexes: as for `QueryView`. version: raised whenever `frame` changes meaning.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        key: Callable[[Row], K],
        frame: Callable[[Tables], DataFrame],
        references: Mapping[str, ReferenceFile] = {},  # never written to
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        self._tabled(key, references)
        self.frame = frame

    @property
    def code(self) -> tuple[object, ...]:
        """The functions that its rows depend on."""
        return (self.key, self.frame)

    def _definition(self) -> list[Any]:
        return [*super()._definition(), "frame"]


_WORDS: Mapping[Any, str] = {
    str: "STRING", int: "BIGINT", bool: "BOOLEAN", Decimal: "DECIMAL(18, 2)", datetime: "TIMESTAMP", date: "DATE",
    UUID: "STRING", time: "STRING",
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
            actual, hint = found[name].dataType.simpleString().upper(), hints[name]
            type_ = hint.__name__ if isinstance(hint, type) else str(hint)
            wrong.append(f"column {name} is {actual}, but {row.__name__}.{name} is {type_}{_cast(hint)}")
    if wrong:
        raise ConfigurationError(f"view {view.name}: the query does not give its row: {'; '.join(sorted(wrong))}")


class RowReader:
    """Makes rows from Arrow batches; it can be pickled."""

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
                raise ContractError(self._problem(values, error)) from error

    def _problem(self, values: Mapping[str, Any], error: ValidationError) -> str:
        problem = error.errors(include_url=False, include_context=False)[0]
        place, row = ".".join(map(str, problem["loc"])), self._view.rows.row.__name__
        if problem["input"] is None:
            why = f"column {place} is NULL, but {row}.{place} cannot be None; COALESCE it, or make the field X | None"
        else:
            why = f"column {place} holds {problem['input']!r}: {problem['msg']}"
        return f"view {self._view.name}: {why} (in {dict(values)!r})"


def _fits(hint: Any, type_: pa.DataType) -> bool:
    hint = bare_type(hint)
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
    if pa.types.is_integer(type_):
        return _is_numbered(hint)
    return pa.types.is_string(type_) and (hint in (str, UUID, time) or _is_read_from_text(hint))


def _is_numbered(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum) and all(type(member.value) is int for member in hint)


def _is_read_from_text(hint: Any) -> bool:
    """Whether it is an Enum or a Literal whose values pydantic finds by their text, as it finds no number in one."""
    values = list(get_args(hint)) if get_origin(hint) is Literal else []
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [member.value for member in hint]
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    with suppress(ValidationError):
        for value in values:
            adapter.validate_python(str(value))
        return len(values) > 0
    return False


def _cast(hint: Any) -> str:
    hint = bare_type(hint)
    inner = bare_type(next((arg for arg in get_args(hint) if arg is not NoneType), hint))
    word = "BIGINT" if _is_numbered(inner) else _WORDS.get(inner)
    return f" (CAST it AS {word})" if word else ""


OpenTable = Callable[[SparkSession, EventTable], DataFrame]
"""Makes the DataFrame of a table of events."""


def own_session(spark: SparkSession, *, shuffles: int) -> SparkSession:
    """A session in which equal events give equal rows: exact decimals, errors instead of NULLs, UTC.

    Args:
        shuffles: the number of partitions for grouping rows.
    """
    session = spark.newSession()
    for name, value in {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.caseSensitive": "false",
        "spark.sql.shuffle.partitions": str(shuffles),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    }.items():
        session.conf.set(name, value)
    return session


def checked(spark: SparkSession, view: QueryView[Any, Any]) -> CheckedQuery:
    """The view's SQL, parsed and checked against the rules; nothing has run.

    Raises:
        ConfigurationError: it breaks a rule.
    """
    where = f"view {view.name}"
    return check(parse(spark, view.query, where), [*view.tables, *view.references], where)


def refreshed(spark: SparkSession, view: TableView[Any, Any]) -> Refreshed:
    """How the view is kept up to date, and why.

    Raises:
        ConfigurationError: its SQL is not allowed.
    """
    if not isinstance(view, QueryView):
        return Refreshed(incremental=False, why="its rows are computed by a function of DataFrames")
    columns = {name for cls in view.events for name in (*cls.model_fields, *METADATA)}
    columns |= {name for file in view.references.values() for name in record_fields(file.row)}
    query = checked(spark, view)
    found = classify(query, view.tables, columns)
    if found.incremental and len(view.categories) > 1:
        # Checkpoints of buckets name every topic of a view, and a stream would move only one of them.
        why = f"its events are of {' and '.join(view.categories)}, and a stream follows one table of events"
        found = Refreshed(incremental=False, why=why)
    if view.late is not None and not found.incremental:
        raise ConfigurationError(
            f"view {view.name}: late= is for what a stream keeps, and {found.why}; change the query, or take late= out"
        )
    if view.late is not None and query.columns is not None and "_time" not in query.columns:
        raise ConfigurationError(f"view {view.name}: late= is about _time, which the query never mentions; take it out")
    return found


def dry_run(spark: SparkSession, view: TableView[Any, Any]) -> None:
    """Computes the view from no events, only to check its columns.

    Raises:
        ConfigurationError: as for `compute`.
    """

    def empty(session: SparkSession, table: EventTable) -> DataFrame:
        return session.createDataFrame([], from_arrow_schema(table.schema))

    compute(own_session(spark, shuffles=1), view, empty)


def compute(session: SparkSession, view: TableView[Any, Any], open_table: OpenTable) -> DataFrame:
    """The view's rows as a DataFrame, with checked columns; nothing has been read yet.

    Args:
        session: as `own_session` makes it.

    Raises:
        ConfigurationError: the SQL is not allowed or does not fit the tables or the row.
    """
    try:
        frame = _frame(session, view, open_table)
        schema = frame.schema
    except PySparkException as error:
        raise ConfigurationError(f"view {view.name}: {str(error).strip().splitlines()[0][:500]}") from error
    check_columns(view, schema)
    return frame.select(*(f"`{name}`" for name in view.rows.names))


def _frame(session: SparkSession, view: TableView[Any, Any], open_table: OpenTable) -> DataFrame:
    if isinstance(view, FrameView):
        return view.frame(_Tables(session, view, open_table, None))
    if not isinstance(view, QueryView):
        raise ConfigurationError(f"view {view.name} is a {type(view).__name__}, which Spark cannot compute")
    query = checked(session, view)
    tables = _Tables(session, view, open_table, query.columns)
    for name in query.tables:
        tables[name].createOrReplaceTempView(f"`{name}`")  # a class may have a name outside of ASCII
    return session.sql(view.query)


class _Tables(Mapping[str, DataFrame]):
    """The tables of a view, each made at its first use."""

    def __init__(
        self,
        session: SparkSession,
        view: TableView[Any, Any],
        open_table: OpenTable,
        columns: frozenset[str] | None,
    ) -> None:
        self._session, self._view, self._open, self._columns = session, view, open_table, columns
        self._events: dict[str, type[Event]] = view.tables
        self._made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._made:
            self._made[name] = self._table(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._events, *self._view.references])

    def __len__(self) -> int:
        return len(self._events) + len(self._view.references)

    def _table(self, name: str) -> DataFrame:
        if name in self._events:
            return self._open(self._session, EventTable(self._events[name], self._columns))
        if name in self._view.references:
            return reference_frame(self._session, self._view.references[name], f"view {self._view.name}")
        raise ConfigurationError(f"view {self._view.name} has no table {name!r}; it has {', '.join(self)}")
