"""Console output of commands: results on standard output, messages and progress bars on standard error."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic_core import to_json, to_jsonable_python

from leftfold.engine.progress import RebuildProgress
from leftfold.safety import printable, printable_json, veiled

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "Styled", "amount", "csv_rows", "csv_value", "draw", "emit", "lasting", "note", "note_lines", "pairs", "say",
    "say_lines", "shown", "shown_path", "styled", "table",
]  # fmt: skip


_GAP = "  "
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Styled:
    """A piece of text with its terminal style, such as a colour."""

    text: str
    style: Mapping[str, Any]


def styled(text: str, **style: Any) -> Styled:
    """A piece of text with a style; the keywords are those of `typer.style`."""
    return Styled(text, style)


def say(*parts: str | Styled) -> None:
    """Prints one line of a result; colours are removed when standard output is no terminal."""
    say_lines([parts])


def note(*parts: str | Styled) -> None:
    """Prints one message on standard error, with secrets masked."""
    note_lines([parts])


def say_lines(lines: Iterable[str | Sequence[str | Styled]]) -> None:
    """Prints several lines of a result in one write."""
    if found := [_printed(line) for line in lines]:
        typer.echo("\n".join(found))


def note_lines(lines: Iterable[str | Sequence[str | Styled]]) -> None:
    """Prints a message of several lines on standard error, with secrets masked."""
    if found := [_printed(line, veil=veiled) for line in lines]:
        typer.echo("\n".join(found), err=True)


def emit(*values: Mapping[str, Any]) -> None:
    """Prints each object as one line of JSON; a number that JSON has no form for is null."""
    for value in values:
        try:
            plain = to_jsonable_python(value, inf_nan_mode="null")
        except ValueError:  # nested more deeply than pydantic follows, as a client may write it
            plain = value
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=to_jsonable_python)
        sys.stdout.write(printable_json(text) + "\n")


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Prints rows under column headings, each column as wide as its longest cell."""
    if not rows:
        return
    cells = [[printable(str(row.get(column, ""))) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[n]) for line in cells)) for n, column in enumerate(columns)]
    say(styled(_line(list(columns), widths), dim=True))
    for line in cells:
        say(_line(line, widths))


def pairs(values: Mapping[str, object]) -> None:
    """Prints names and values, one pair per line."""
    names = {name: printable(name) for name in values}
    width = max(map(len, names.values()), default=0)
    for name, value in values.items():
        say(styled(f"{names[name]:<{width}}", dim=True), f"{_GAP}{value}")


def draw(drawing: RenderableType, width: int | None = None) -> None:
    """Prints a renderable of rich on standard output.

    Args:
        width: columns, instead of the terminal's width; lines are not wrapped then. None = the terminal's width.
    """
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(width=width, highlight=False, markup=False, emoji=False)
    options = console.options if width is None else console.options.update(no_wrap=True, overflow="ignore")
    drawn = [
        Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)
        for segment in console.render(drawing, options)
        if not segment.control
    ]
    console.print(Segments(drawn), soft_wrap=True, end="")


def csv_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as comma-separated values; an apostrophe keeps a spreadsheet from running a cell as a formula."""
    writer = csv.writer(sys.stdout)
    writer.writerow([csv_value(column) for column in columns])
    writer.writerows([csv_value(value) for value in row] for row in rows)


def amount(number: int, what: str) -> str:
    """A count with its noun: `1 event`, `2 events`, `3 processes`, `1,469,307 events`."""
    plural = "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


def shown_path(path: Path) -> str:
    """A path as people read it: relative to the working directory where it lies there."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def lasting(seconds: float) -> str:
    """A duration in its largest whole unit: `2 d`, `3 h`, `4 min`, `5 s`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _printed(line: str | Sequence[str | Styled], *, veil: Callable[[str], str] = str) -> str:
    """A line as it is printed; `veil` masks secrets."""
    parts = [line] if isinstance(line, str) else line
    return "".join(
        printable(veil(part)) if isinstance(part, str) else typer.style(printable(veil(part.text)), **part.style)
        for part in parts
    )


def _line(cells: list[str], widths: list[int]) -> str:
    return _GAP.join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def csv_value(value: Any) -> Any:
    """A value as a cell of a CSV file, JSON where it has parts; an apostrophe keeps spreadsheets from running it."""
    if value is None or isinstance(value, int | float):
        return value
    is_whole = not isinstance(value, list | tuple | dict)
    text = str(value) if is_whole else to_json(value, inf_nan_mode="null", fallback=str).decode()
    guarded = text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)
    return ("'" if guarded else "") + printable(text)


@contextmanager
def shown(what: str) -> Iterator[Callable[[RebuildProgress], None]]:
    """A progress callback that draws a bar on standard error while the block runs; silent without a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:<28}"), BarColumn(bar_width=30), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, figures="")

        def report(progress: RebuildProgress) -> None:
            bar.update(
                task,
                description=f"{what}: {progress.phase}",
                total=progress.total or None,
                completed=progress.done,
                figures=_figures(progress),
            )

        yield report


def _figures(progress: RebuildProgress) -> str:
    if not progress.total:
        return f"{progress.seconds:.0f} s" if progress.seconds >= 1 else ""
    rate = f"{progress.done:,}/{progress.total:,}  {progress.rate:,.0f}/s"
    return rate if progress.eta is None else f"{rate}  {progress.eta:.0f} s left"
