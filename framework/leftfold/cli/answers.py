"""Rows of an answer as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

__all__ = ["table"]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under headings, numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from leftfold.cli.console import draw
    from leftfold.printable import printable

    rows = list(rows)
    shown = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(columns):
        right = rows and all(isinstance(row[number], int | float | Decimal) or row[number] is None for row in rows)
        shown.add_column(Text(printable(name)), justify="right" if right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text("" if value is None else printable(str(value))) for value in row))
    draw(shown)
