"""Rows that differ, field by field."""

from __future__ import annotations

from collections.abc import Sequence

from leftfold.cli.console import say
from leftfold.engine.diff import RowDifference

__all__ = ["show_rows"]

_SHOWN = 5


def show_rows(rows: Sequence[RowDifference], one: str, other: str) -> None:
    """The first rows that differ, their fields side by side under the names of both."""
    width = max(len(one), len(other))
    for row in rows[:_SHOWN]:
        say(f"  {row.key}")
        if row.one is None or row.other is None:
            say(f"    only in {other if row.one is None else one}: {_text(row.one or row.other or {})}")
            continue
        for name in row.fields:
            say(f"    {name}")
            say(f"      {one:<{width}}  {row.one.get(name, '')}")
            say(f"      {other:<{width}}  {row.other.get(name, '')}")
    if len(rows) > _SHOWN:
        say(f"  ... and {len(rows) - _SHOWN:,} more")


def _text(fields: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(fields).items())  # type: ignore[call-overload]
