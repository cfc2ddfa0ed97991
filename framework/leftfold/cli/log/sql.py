"""`leftfold log sql`: runs a SQL query over the log on Spark and prints the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from leftfold.errors import ContractError, LeftfoldError
from leftfold.model.app import App
from leftfold.runtime.connect import kafka_settings, open_bulk
from leftfold.runtime.console import csv_rows, emit, note, say_lines
from leftfold.runtime.project import Cut, archive_of
from leftfold.runtime.rebuilding import spark_settings

if TYPE_CHECKING:
    from leftfold.spark.sql.results import Answer

__all__ = ["Asking"]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows under their headings, numbers aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from leftfold.runtime.console import draw
    from leftfold.safety import printable

    rows = list(rows)
    shown = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(columns):
        right = rows and all(isinstance(row[number], int | float | Decimal) or row[number] is None for row in rows)
        shown.add_column(Text(printable(name)), justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if value is None else printable(str(value))) for value in row))
    draw(shown)


_MISTAKES = frozenset({"AnalysisException", "ParseException"})  # by name, since pyspark is imported only when needed
_PROMPT, _MORE = "sql> ", "...> "


class Asking:
    """Runs SQL queries over the log; a session whose Spark has died is replaced before the next query.

    Args:
        form: `table`, `json` or `csv`. rows: most rows of an answer. megabytes: largest size of all its rows.
    """

    def __init__(
        self,
        app: App,
        kafka: str | None,
        archive: str | None,
        master: str | None,
        *,
        form: str,
        rows: int,
        megabytes: int,
    ) -> None:
        self._app, self._form, self._open = app, form, ExitStack()
        self._log = open_bulk(kafka_settings(kafka), archive_of(archive))
        settings = spark_settings(master)
        # Most that the driver takes from all tasks of a query, such as a table that is broadcast.
        most = {"spark.driver.maxResultSize": f"{max(256, 2 * megabytes)}m"}
        self._settings = settings.model_copy(update={"properties": {**most, **settings.properties}})
        self._rows, self._megabytes = rows, megabytes
        self._spark: Any = None

    def __enter__(self) -> Self:
        from leftfold.spark.core.session import spark_session

        note("starting Spark")
        self._spark = self._open.enter_context(spark_session(self._settings))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def answer(self, statement: str) -> None:
        """Runs a query on the log as it is now and prints the rows.

        Raises:
            ContractError: the statement is no query, or names an unknown table or column.
            InfrastructureError: the log has a gap, or the query killed Spark.
            Cut: the answer exceeds its limits, and is printed as JSON or CSV.
        """
        from leftfold.spark.sql.results import check_question

        with _understood():
            self._look()
            check_question(self._spark, statement, self._tables)
            from leftfold.spark.sql import results as answers

            limit = answers.AnswerLimit(self._rows, self._megabytes << 20)
            answer = answers.Answer(self._spark.sql(statement), limit)
            shown = self._show(answer)
            if misfits := str(self._tables.misfits):
                note(misfits)
        if answer.cut:
            self._tell_cut(answer.cut, shown)

    def converse(self) -> None:
        """Runs typed statements, each ended by a semicolon, until the input ends."""
        self._look()
        note("end a query with ; - .tables lists the tables, .schema NAME tells a table's columns, .quit ends")
        while (statement := _typed()) is not None:
            if statement in (".quit", ".exit"):
                return
            try:
                self._run_dot(statement) if statement.startswith(".") else self.answer(statement)
            except LeftfoldError as error:
                note(f"error: {error}")

    def _look(self) -> None:
        """Registers the tables of the log as it is now, in a new session when Spark has died."""
        from leftfold.spark.core import jvm as launch
        from leftfold.spark.core.session import open_session
        from leftfold.spark.tables.frames import event_tables

        if not launch.is_alive():
            note("starting Spark again, since it has died")
            self._spark = open_session(self._settings)
        self._tables: Any = event_tables(self._spark, self._app, self._log)
        for name, frame in self._tables.items():
            frame.createOrReplaceTempView(name)

    def _run_dot(self, command: str) -> None:
        word, _, name = command.partition(" ")
        if word == ".tables":
            say_lines(sorted(self._tables))
        elif word == ".schema" and name.strip() in self._tables:
            with _understood():
                self._look()
                say_lines(f"{column}  {type_}" for column, type_ in self._tables[name.strip()].dtypes)
        else:
            note(f"{command!r} is neither .tables, nor .schema with the name of a table, nor .quit")

    def _show(self, answer: Answer) -> int:
        """Prints an answer and returns its number of rows."""
        count = 0

        def counted() -> Iterator[tuple[Any, ...]]:
            nonlocal count
            for row in answer:
                count += 1
                yield row

        if self._form == "json":
            for row in counted():
                emit(dict(zip(answer.columns, map(_jsonable, row), strict=True)))
        elif self._form == "csv":
            csv_rows(answer.columns, counted())
        else:
            table(answer.columns, list(counted()))
        return count

    def _tell_cut(self, cut: str, shown: int) -> None:
        """Prints that the answer was cut at a limit.

        Raises:
            Cut: the answer is printed as JSON or CSV, and a program must not take it for complete.
        """
        of_rows = f"--limit {self._rows} lets an answer have no more rows"
        of_bytes = f"--max-mb {self._megabytes} lets its values be no larger; ask for fewer columns, or for sums"
        why = f"only the first {shown:,} rows are shown: {of_rows if cut == 'rows' else of_bytes}"
        if self._form != "table":
            raise Cut(why)
        note(why)


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


def _jsonable(value: Any) -> Any:
    """A value with Spark's rows, lists and maps as JSON has them."""
    if hasattr(value, "asDict"):
        return {name: _jsonable(one) for name, one in value.asDict().items()}
    if isinstance(value, list):
        return [_jsonable(one) for one in value]
    return {name: _jsonable(one) for name, one in value.items()} if isinstance(value, dict) else value


def _typed() -> str | None:
    """The statement typed up to a semicolon, or a command in one line; None at the end of the input."""
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
