"""Reads what the routers of a process say of time."""

from __future__ import annotations

from collections.abc import Callable

from leftfold.engine.log_time import TimeMark
from leftfold.ports import LogReader
from leftfold.position import Position

__all__ = ["TimeMarks"]


class TimeMarks:
    """The marks in `{process}.time`, each once; without that topic nobody knows what time it is.

    Args:
        partitions: how many partitions a topic has, 0 = it does not exist.
    """

    def __init__(self, topic: str, open_log: Callable[[], LogReader], partitions: Callable[[str], int]) -> None:
        self._topic, self._open, self._partitions = topic, open_log, partitions
        self._log: LogReader | None = None

    def poll(self) -> list[TimeMark]:
        """What was told since."""
        if self._log is None:
            count = self._partitions(self._topic)
            if not count:
                return []
            self._log = self._open()
            self._log.seek(Position({self._topic: dict.fromkeys(range(count), 0)}))
        return [TimeMark.decode(record.value or b"") for record in self._log.poll(1000, 0.0)]

    def close(self) -> None:
        """Lets go of the reader."""
        if self._log is not None:
            self._log.close()
