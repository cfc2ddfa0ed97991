"""Computes the result of a view from its tables, in a session of its own so that nothing leaks into the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold.errors import ConfigurationError
from leftfold.messages import Event
from leftfold.query import METADATA, QueryView, TableView
from leftfold.spark.frame_view import FrameView
from leftfold.spark.results import check_columns
from leftfold.spark.sql.check import CheckedQuery, check
from leftfold.spark.sql.incremental import Refreshed, classify
from leftfold.spark.sql.parser import parse
from leftfold.spark.tables import EventTable, reference_frame

__all__ = ["OpenTable", "checked", "compute", "dry_run", "own_session", "refreshed"]

OpenTable = Callable[[SparkSession, EventTable], DataFrame]
"""Makes the DataFrame of a table of events."""


def own_session(spark: SparkSession, *, shuffles: int) -> SparkSession:
    """A session with settings under which equal events give equal rows: exact decimals, errors instead of NULLs, UTC.

    Args:
        shuffles: into how many parts rows are grouped.
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
    """The view's SQL, parsed and found to be harmless; nothing has run.

    Raises:
        ConfigurationError: it is not.
    """
    where = f"view {view.name}"
    return check(parse(spark, view.query, where), [*view.tables, *view.references], where)


def refreshed(spark: SparkSession, view: TableView[Any, Any]) -> Refreshed:
    """How the view is kept up to date, and why so.

    Raises:
        ConfigurationError: its SQL is not allowed.
    """
    if not isinstance(view, QueryView):
        return Refreshed(incremental=False, why="its rows are computed by a function of DataFrames")
    columns = {name for cls in view.events for name in (*cls.model_fields, *METADATA)}
    columns |= {name for file in view.references.values() for name in file.row.__annotations__}
    query = checked(spark, view)
    found = classify(query, view.tables, columns)
    if found.incremental and len(view.categories) > 1:
        # Marks name every topic of a view, and a stream would move one of them only.
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
    """Computes the view of no events, as far as its columns.

    Raises:
        ConfigurationError: as for `compute`.
    """

    def empty(session: SparkSession, table: EventTable) -> DataFrame:
        return session.createDataFrame([], from_arrow_schema(table.schema))

    compute(own_session(spark, shuffles=1), view, empty)


def compute(session: SparkSession, view: TableView[Any, Any], open_table: OpenTable) -> DataFrame:
    """The view's rows as a DataFrame, its columns found to be those of the row; nothing has been read yet.

    Args:
        session: as `own_session` makes it.

    Raises:
        ConfigurationError: the SQL is not allowed or does not fit the tables or the row.
    """
    try:
        frame = _frame(session, view, open_table)
        schema = frame.schema
    except PySparkException as error:
        raise ConfigurationError(f"view {view.name}: {_first_line(error)}") from error
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
        tables[name].createOrReplaceTempView(name)
    return session.sql(view.query)


class _Tables(Mapping[str, DataFrame]):
    """The tables of a view, each made when it is first asked for."""

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


def _first_line(error: PySparkException) -> str:
    return str(error).strip().splitlines()[0][:500]
