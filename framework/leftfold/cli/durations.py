"""Lengths of time as people write them on a command line."""

from __future__ import annotations

import re

import typer

__all__ = ["seconds"]

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")


def seconds(text: str | float) -> float:
    """The seconds behind `90`, `90s`, `1.5m` or `2h`.

    Raises:
        typer.BadParameter: it is none of these, or no time at all.
    """
    found = _TEXT.fullmatch(str(text).strip())
    length = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if length <= 0:
        raise typer.BadParameter(f"{text!r} is no length of time; write 30s, 5m or 1h")
    return length
