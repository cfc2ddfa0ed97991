"""What time it is at the events that a process listens to, in a log in memory: what routers say of a real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from leftfold.codec import header
from leftfold.engine.log_time import SILENCE, SourceTime, TimeMark
from leftfold.memory.log import MemoryLog
from leftfold.moments import moment_at, moment_in

__all__ = ["Sources"]


class Sources:
    """The partitions of some topics, all of whose events are routed.

    Args:
        lateness: how late an event may come and hold time back; None = however late.
    """

    def __init__(self, log: MemoryLog, topics: Iterable[str], lateness: timedelta | None = None) -> None:
        self._log, self._topics, self._lateness = log, tuple(topics), lateness

    def mark(self, now: datetime, inputs: Mapping[int, int]) -> TimeMark:
        """What time it is, given the ends of the inputs."""
        return TimeMark({name: SourceTime(at.time, at.appended, now) for name, at in self._last()}, inputs)

    def changes(self, timer: datetime) -> Iterator[datetime]:
        """The moments at which a timer may become due: its own, and those that late events make of it."""
        yield timer
        for _, at in self._last():
            if at.appended is not None and at.late >= SILENCE:
                yield timer + at.late
                yield at.appended + SILENCE

    def _last(self) -> Iterator[tuple[str, SourceTime]]:
        for topic in self._topics:
            for partition, records in enumerate(self._log.of(topic)):
                at = SourceTime()
                if records and (time := moment_in(header(records[-1].headers, "ce_time"))):
                    at = SourceTime(time, moment_at(records[-1].time)).within(self._lateness)
                yield f"{topic}/{partition}", at
