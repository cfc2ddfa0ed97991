"""What commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer
from pydantic_core import to_jsonable_python

from leftfold.veil import veiled

__all__ = ["amount", "emit", "lasting", "note", "pairs", "say", "since", "table"]

_GAP = "  "


def say(text: str = "") -> None:
    """A line of result; colours are taken out where nobody sees them."""
    typer.echo(text)


def note(text: str) -> None:
    """A remark beside the result, without secrets."""
    typer.echo(veiled(text), err=True)


def emit(value: Mapping[str, Any]) -> None:
    """One object as one line of JSON."""
    text = json.dumps(to_jsonable_python(value), ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write(text + "\n")


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Rows under headings, as wide as they need to be."""
    if not rows:
        return
    cells = [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[n]) for line in cells)) for n, column in enumerate(columns)]
    say(typer.style(_line(list(columns), widths), dim=True))
    for line in cells:
        say(_line(line, widths))


def pairs(values: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        say(f"{typer.style(f'{name:<{width}}', dim=True)}{_GAP}{value}")


def amount(number: int, what: str) -> str:
    """`1 event`, `2 events`, `3 processes`, `1,469,307 events`."""
    plural = "es" if what.endswith("s") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


def since(time: str) -> float:
    """The seconds since a time (RFC 3339)."""
    return (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()


def lasting(seconds: float) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _line(cells: list[str], widths: list[int]) -> str:
    return _GAP.join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
