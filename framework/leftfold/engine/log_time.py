"""What time it is in the log: when timers are due (design §6, decision 27)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from leftfold.codec import utc_text
from leftfold.errors import ContractError

__all__ = ["SILENCE", "LogTime", "SourceTime", "TimeMark"]

_TIMES = ("time", "appended", "end")
SILENCE = timedelta(seconds=60)
"""A partition at its end whose last event came late says what time it is by the wall clock after so long."""


@dataclass(frozen=True)
class SourceTime:
    """How far a partition of events is routed: the time of its last event, when that was appended, and, if there is
    nothing behind it, when that was so.
    """

    time: datetime | None = None
    appended: datetime | None = None
    end: datetime | None = None

    def is_at(self) -> datetime | None:
        """What time it is there; None when nobody knows.

        An event that comes next is taken to come as late as the last one did: who loads last year's events is in last
        year, however slowly. Less than a minute is not late; after a minute of silence the wall clock counts, as it
        does where nothing ever came.
        """
        if self.time is None or self.appended is None:
            return self.end
        if self.end is None:
            return min(self.time, self.appended)
        late = self.appended - self.time
        return self.end if late < SILENCE or self.end - self.appended >= SILENCE else self.end - late


@dataclass(frozen=True)
class TimeMark:
    """What a router tells: the time of its sources, by `topic/partition`, and up to which offset of each partition of
    the process everything stands that it has routed.
    """

    sources: Mapping[str, SourceTime] = field(default_factory=dict)
    inputs: Mapping[int, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The record's value."""
        sources = {
            name: {what: utc_text(at) for what, at in vars(source).items() if at is not None}
            for name, source in self.sources.items()
        }
        return json.dumps({"sources": sources, "inputs": self.inputs}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> TimeMark:
        """The mark in a record.

        Raises:
            ContractError: it is none.
        """
        try:
            fields = json.loads(value)
            sources = {
                name: SourceTime(**{what: datetime.fromisoformat(times[what]) for what in _TIMES if what in times})
                for name, times in fields["sources"].items()
            }
            return cls(sources, {int(partition): int(end) for partition, end in fields["inputs"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ContractError(f"{value[:80]!r} says no time: {error!r}") from error


class LogTime:
    """The time as one partition of a process sees it: the least of its sources, each as far as its inputs are taken.

    Args:
        sources: every partition of every topic that the process listens to, as `topic/partition`.
    """

    def __init__(self, sources: Iterable[str]) -> None:
        self._at: dict[str, datetime | None] = dict.fromkeys(sources)
        self._told: dict[str, deque[tuple[int, datetime | None]]] = {source: deque() for source in self._at}
        self._seen = dict.fromkeys(self._at, -1)

    def tell(self, partition: int, mark: TimeMark) -> None:
        """Takes a mark; it counts once this partition's inputs are taken as far as the mark says."""
        needed = mark.inputs.get(partition, 0)
        for name, source in mark.sources.items():
            if name in self._at and needed > self._seen[name]:
                told = self._told[name]
                if told and told[-1][0] == needed:
                    told.pop()
                told.append((needed, source.is_at()))

    def saw(self, source: str, time: datetime, offset: int) -> None:
        """An input of this offset came from there: it is no later than this there, whatever was said before it."""
        if source in self._at:
            self._at[source], self._seen[source] = time, offset
            told = self._told[source]
            while told and told[0][0] <= offset:
                told.popleft()

    def now(self, next_offset: int) -> datetime | None:
        """The time, given the next input to be taken; None while a source has not said anything."""
        for name, told in self._told.items():
            while told and told[0][0] <= next_offset:
                self._at[name] = told.popleft()[1]
        times = [at for at in self._at.values() if at is not None]
        return min(times) if times and len(times) == len(self._at) else None
