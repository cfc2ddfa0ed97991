"""SQL queries over the log on Spark, as commands and pages ask them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from leftfold.errors import ContractError, LeftfoldError
from leftfold.model.app import App
from leftfold.ports.protocols import Closing
from leftfold.runtime.connect import kafka_settings, open_bulk
from leftfold.runtime.console import note
from leftfold.runtime.project import archive_of
from leftfold.runtime.rebuilding import spark_settings

if TYPE_CHECKING:
    from leftfold.spark.sql.query_results import Answer

__all__ = ["LogQuery", "json_value", "sql_name"]

_MISTAKES = frozenset({"AnalysisException", "ParseException"})  # by name, since pyspark is imported only when needed


class LogQuery(Closing):
    """A Spark session for queries over the log; one whose Spark has died is replaced before the next query.

    Args:
        rows: most rows of an answer. megabytes: largest size of all its rows. seconds: how long a query may take.
    """

    def __init__(
        self,
        app: App,
        kafka: str | None,
        archive: str | None,
        master: str | None = None,
        *,
        rows: int = 1000,
        megabytes: int = 32,
        seconds: float | None = None,
    ) -> None:
        self._app, self._open = app, ExitStack()
        self._log = open_bulk(kafka_settings(kafka), archive_of(archive))
        settings = spark_settings(master)
        # Most that the driver takes from all tasks of a query, such as a table that is broadcast.
        most = {"spark.driver.maxResultSize": f"{max(256, 2 * megabytes)}m"}
        self._settings = settings.model_copy(update={"properties": {**most, **settings.properties}})
        self._rows, self._megabytes, self._seconds = rows, megabytes, seconds
        self._spark: Any = None
        self._tables: Any = {}

    def __enter__(self) -> Self:
        from leftfold.spark.core.session import spark_session

        note("starting Spark")
        self._spark = self._open.enter_context(spark_session(self._settings))
        return self

    def close(self) -> None:
        """Stops the session."""
        self._open.close()

    @property
    def misfits(self) -> str:
        """A remark on events that the last query passed over; '' when there were none."""
        return str(self._tables.misfits)

    def tables(self) -> dict[str, dict[str, str]]:
        """The types of columns by their names, of every table as the last look found it."""
        with _understood():
            return {name: dict(frame.dtypes) for name, frame in self._tables.items()}

    def look(self) -> None:
        """Registers the tables of the log as it is now, in a new session when Spark has died."""
        from leftfold.spark.core import jvm as launch
        from leftfold.spark.core.session import open_session
        from leftfold.spark.tables.frames import event_tables

        if not launch.is_alive():
            note("starting Spark again, since it has died")
            self._spark = open_session(self._settings)
        self._tables = event_tables(self._spark, self._app, self._log)
        for name, frame in self._tables.items():
            frame.createOrReplaceTempView(f"`{name}`")  # a category may have a hyphen

    @contextmanager
    def answered(self, statement: str) -> Iterator[Answer]:
        """The answer to a query on the log as it is now; its rows are read within the block.

        Raises:
            ContractError: the statement is no query, or names an unknown table or column.
            InfrastructureError: the log has a gap, the query took too long, or it killed Spark.
        """
        from leftfold.spark.core.job import limited
        from leftfold.spark.sql.query_results import check_question

        with _understood():
            self.look()
            check_question(self._spark, statement, self._tables)
            from leftfold.spark.sql import query_results as answers

            limit = answers.AnswerLimit(self._rows, self._megabytes << 20)
            with nullcontext() if self._seconds is None else limited(self._spark.sparkContext, self._seconds):
                yield answers.Answer(self._spark.sql(statement), limit)


@contextmanager
def _understood() -> Iterator[None]:
    """Translates Spark's errors into errors of `leftfold.errors`."""
    from leftfold.spark.core.task_io import cause_of

    try:
        yield
    except (LeftfoldError, BrokenPipeError):
        raise
    except Exception as error:
        if type(error).__name__ in _MISTAKES:
            raise ContractError(next(iter(str(error).splitlines()), repr(error))) from error
        raise cause_of(error) from error


def sql_name(name: str) -> str:
    """A name as SQL takes it: one with a hyphen, or letters outside of ASCII, in back quotes."""
    return name if re.fullmatch(r"\w+", name, re.ASCII) else f"`{name}`"


def json_value(value: Any) -> Any:
    """A value with Spark's rows, lists and maps as JSON has them, times of UTC with Z, and bytes in base64."""
    if hasattr(value, "asDict"):
        names, found = value.__fields__, [json_value(one) for one in value]
        # A dict would hold only the last of several fields of one name.
        return dict(zip(names, found, strict=True)) if len(set(names)) == len(names) else found
    if isinstance(value, list):
        return [json_value(one) for one in value]
    if isinstance(value, dict):
        # A struct that is a key stays a tuple: a dict could be none.
        return {name if isinstance(name, tuple) else json_value(name): json_value(one) for name, one in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat().replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray) else value
