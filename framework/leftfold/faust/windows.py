"""The windows of a table of Faust that a time lies in."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from faust.types.windows import WindowRange

from leftfold.errors import ConfigurationError

__all__ = ["Windowed", "windows_of"]


class Windowed(NamedTuple):
    """One window: `range` is what the entry `table[key][range]` is called, `start` when it begins."""

    range: WindowRange
    start: datetime


def windows_of(table: Any, time: datetime) -> list[Windowed]:
    """The windows of a table that a time (aware) lies in, the earliest first.

    Raises:
        ConfigurationError: the table has no windows.
    """
    window = getattr(getattr(table, "table", None), "window", None)
    if window is None:
        raise ConfigurationError(
            f"{table!r} has no windows; make them: Table(...).hopping(size, step) or .tumbling(size)"
        )
    ranges = window.ranges(time.timestamp())
    return [Windowed(range_, datetime.fromtimestamp(range_[0], time.tzinfo)) for range_ in ranges]
