"""Reads what the routers of a process say of time."""

from __future__ import annotations

from collections.abc import Callable

from leftfold.engine.log_time import TimeMark
from leftfold.errors import ContractError
from leftfold.ports import LogReader, RawRecord

__all__ = ["TimeMarks"]


class TimeMarks:
    """The marks in `{process}.time` from now on; without that topic nobody knows what time it is.

    Args:
        partitions: how many partitions a topic has, 0 = it does not exist.
    """

    def __init__(self, topic: str, open_log: Callable[[], LogReader], partitions: Callable[[str], int]) -> None:
        self._topic, self._open, self._partitions = topic, open_log, partitions
        self._log: LogReader | None = None

    def poll(self) -> list[TimeMark]:
        """What was told since."""
        if self._log is None:
            if not self._partitions(self._topic):
                return []
            self._log = self._open()
            # Marks of the past are worth nothing, and the topic forgets them.
            self._log.seek(self._log.ends([self._topic]))
        return [mark for record in self._log.poll(1000, 0.0) if (mark := _mark(record)) is not None]

    def close(self) -> None:
        """Lets go of the reader."""
        if self._log is not None:
            self._log.close()


def _mark(record: RawRecord) -> TimeMark | None:
    """The mark; None when it is one of newer code: the next one may be readable, and until then time stands still."""
    try:
        return TimeMark.of(record)
    except ContractError:
        return None
