"""What `leftfold log sql` puts together: a Spark session with the log's tables, and answers as people want them."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any, Self

from leftfold.app import App
from leftfold.cli.answers import table
from leftfold.cli.archives import archive_of
from leftfold.cli.console import csv_rows, emit, note, say_lines
from leftfold.cli.rebuilding import spark_settings
from leftfold.connection import kafka_settings, ring
from leftfold.errors import ContractError, LeftfoldError
from leftfold.wholelog import open_bulk

__all__ = ["Asking"]

_MISTAKES = frozenset({"AnalysisException", "ParseException"})  # of pyspark, which is imported when it is needed
_PROMPT, _MORE = "sql> ", "...> "


class Asking:
    """Answers queries on one session.

    Args:
        form: `table`, `json` or `csv`.
    """

    def __init__(self, app: App, kafka: str | None, archive: str | None, master: str | None, *, form: str) -> None:
        self._app, self._form, self._open = app, form, ExitStack()
        self._log = open_bulk(kafka_settings(kafka), archive_of(archive))
        self._master = master
        self._spark: Any = None

    def __enter__(self) -> Self:
        note("starting Spark")
        session = ring("leftfold.spark.session").spark_session(spark_settings(self._master))
        self._spark = self._open.enter_context(session)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def answer(self, statement: str, limit: int) -> None:
        """Answers a query from the log as it is now.

        Raises:
            ContractError: it is none, or names what is not there.
            InfrastructureError: the log has a hole.
        """
        self._look()
        ring("leftfold.spark.sql.asking").check_question(self._spark, statement, self._tables)
        try:
            frame = self._spark.sql(statement)
            rows = frame.toLocalIterator()
            self._show(frame.columns, rows, limit)
            if told := str(self._tables.misfits):
                note(told)
        except LeftfoldError:
            raise
        except Exception as error:
            raise self._cause(error) from error

    def converse(self, limit: int) -> None:
        """Answers statements that are typed, each ended by a semicolon, until the input ends."""
        self._look()
        note("end a query with ; - .tables lists the tables, .schema NAME tells a table's columns, .quit ends")
        while (statement := _typed()) is not None:
            if statement in (".quit", ".exit"):
                return
            try:
                self._told(statement) if statement.startswith(".") else self.answer(statement, limit)
            except LeftfoldError as error:
                note(f"error: {error}")

    def _look(self) -> None:
        """Makes the tables as the log is now."""
        self._tables: Any = ring("leftfold.spark.event_tables").event_tables(self._spark, self._app, self._log)
        for name, frame in self._tables.items():
            frame.createOrReplaceTempView(name)

    def _told(self, command: str) -> None:
        word, _, name = command.partition(" ")
        if word == ".tables":
            say_lines(sorted(self._tables))
        elif word == ".schema" and name.strip() in self._tables:
            say_lines(f"{column}  {type_}" for column, type_ in self._tables[name.strip()].dtypes)
        else:
            note(f"{command!r} is neither .tables, nor .schema with the name of a table, nor .quit")

    def _show(self, columns: list[str], rows: Any, limit: int) -> None:
        if self._form == "json":
            for row in rows:
                emit(row.asDict(recursive=True))
        elif self._form == "csv":
            csv_rows(columns, rows)
        else:
            table(columns, list(islice(rows, limit)))
            if next(rows, None) is not None:
                note(f"only the first {limit:,} rows are shown; say --limit, or --csv for all of them")

    def _cause(self, error: Exception) -> LeftfoldError:
        if type(error).__name__ in _MISTAKES:
            return ContractError(next(iter(str(error).splitlines()), repr(error)))
        cause: LeftfoldError = ring("leftfold.spark.outcome").cause_of(error)
        return cause


def _typed() -> str | None:
    """What is typed up to a semicolon, or a command in one line; None at the end of the input."""
    lines: list[str] = []
    while True:
        try:
            line = input(_MORE if lines else _PROMPT).strip()
        except EOFError:
            return None
        if not lines and line.startswith("."):
            return line
        if line:
            lines.append(line)
        if line.endswith(";"):
            return "\n".join(lines).rstrip(";")
