"""`leftfold log sql`: runs a SQL query over the log on Spark and prints the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from leftfold.errors import LeftfoldError
from leftfold.runtime.console import csv_rows, draw, emit, note, say_lines
from leftfold.runtime.operations.sql_queries import LogQuery, json_value, sql_name
from leftfold.runtime.project import Cut, Usage
from leftfold.safety import printable

if TYPE_CHECKING:
    from leftfold.spark.sql.query_results import Answer

__all__ = ["Asking"]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows under their headings, numbers aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    shown = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(columns):
        right = rows and all(isinstance(row[number], int | float | Decimal) or row[number] is None for row in rows)
        shown.add_column(Text(printable(name)), justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if value is None else printable(str(value))) for value in row))
    draw(shown)


_PROMPT, _MORE = "sql> ", "...> "


class Asking:
    """Runs SQL queries over the log and prints their answers.

    Args:
        form: `table`, `json` or `csv`. rows, megabytes: the limits of an answer, which `queries` keep.
    """

    def __init__(self, queries: LogQuery, *, form: str, rows: int, megabytes: int) -> None:
        self._queries, self._form, self._rows, self._megabytes = queries, form, rows, megabytes

    def answer(self, statement: str) -> None:
        """Runs a query on the log as it is now and prints the rows.

        Raises:
            ContractError: the statement is no query, or names an unknown table or column.
            InfrastructureError: the log has a gap, or the query killed Spark.
            Cut: the answer exceeds its limits, and is printed as JSON or CSV.
            Usage: several of its columns have one name, and it is printed as JSON.
        """
        with self._queries.answered(statement) as answer:
            shown = self._show(answer)
            if misfits := self._queries.misfits:
                note(misfits)
        if answer.cut:
            self._tell_cut(answer.cut, shown)

    def converse(self) -> None:
        """Runs typed statements, each ended by a semicolon, until the input ends."""
        self._queries.look()
        note("end a query with ; - .tables lists the tables, .schema NAME tells a table's columns, .quit ends")
        while (statement := _typed()) is not None:
            if statement in (".quit", ".exit"):
                return
            try:
                self._run_dot(statement) if statement.startswith(".") else self.answer(statement)
            except LeftfoldError as error:
                note(f"error: {error}")

    def _run_dot(self, command: str) -> None:
        word, _, name = command.partition(" ")
        name = name.strip().strip("`")
        if word == ".tables":
            say_lines(map(sql_name, sorted(self._queries.tables())))
        elif word == ".schema" and name in self._queries.tables():
            self._queries.look()
            say_lines(f"{sql_name(column)}  {type_}" for column, type_ in self._queries.tables()[name].items())
        else:
            note(f"{command!r} is neither .tables, nor .schema with the name of a table, nor .quit")

    def _show(self, answer: Answer) -> int:
        """Prints an answer and returns its number of rows."""
        count, columns = 0, answer.columns
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice and self._form == "json":
            names = ", ".join(twice)
            raise Usage(f"several columns are named {names}, which JSON cannot hold; name them apart: x AS other")

        def counted() -> Iterator[tuple[Any, ...]]:
            nonlocal count
            for row in answer:
                count += 1
                yield tuple(map(json_value, row))

        if self._form == "json":
            for row in counted():
                emit(dict(zip(columns, row, strict=True)))
        elif self._form == "csv":
            csv_rows(columns, counted())
        else:
            table(columns, list(counted()))
        return count

    def _tell_cut(self, cut: str, shown: int) -> None:
        """Prints that the answer was cut at a limit."""
        of_rows = f"--limit {self._rows} lets an answer have no more rows"
        of_bytes = f"--max-mb {self._megabytes} lets its values be no larger; ask for fewer columns, or for sums"
        why = f"only the first {shown:,} rows are shown: {of_rows if cut == 'rows' else of_bytes}"
        if self._form != "table":
            raise Cut(why)
        note(why)


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
