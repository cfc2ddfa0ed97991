"""Event time of the log: when timers are due (design §6, decisions 28 and 33), and how late each source is."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from leftfold.errors import ContractError
from leftfold.model.encoding import moment_at
from leftfold.ports.codec import utc_text
from leftfold.ports.protocols import RawRecord

__all__ = ["SILENCE", "LogTime", "SourceTime", "Watermark", "WatermarkStatus", "told_time"]


_TIMES = ("time", "appended", "end")
SILENCE = timedelta(seconds=60)
"""A partition at its end whose last event came late says what time it is by the wall clock after so long."""
LOAD = timedelta(days=1)
"""Events that come so late are being loaded."""


@dataclass(frozen=True)
class SourceTime:
    """How far a partition of events is routed: the time of its last event, when that was appended, and, if there is
    nothing behind it, when that was so.
    """

    time: datetime | None = None
    appended: datetime | None = None
    end: datetime | None = None

    @property
    def late(self) -> timedelta:
        """How late the last event came."""
        return timedelta() if self.time is None or self.appended is None else self.appended - self.time

    def within(self, lateness: timedelta | None) -> SourceTime:
        """The same, its last event counting as no later than that; None = however late it came."""
        if lateness is None or self.appended is None or self.late <= lateness:
            return self
        return replace(self, time=self.appended - lateness)

    def is_loaded(self, clock: datetime) -> bool:
        """Whether old events come in here, given the time by the wall clock."""
        return self.appended is not None and self.late >= LOAD and clock - self.appended < SILENCE

    def until(self, now: datetime) -> SourceTime:
        """The same, no further than a time: a router whose clock is ahead must not move what cannot be moved back."""
        return SourceTime(
            self.time,
            None if self.appended is None else min(self.appended, now),
            None if self.end is None else min(self.end, now),
        )

    def is_at(self, *, loading: bool = False) -> datetime | None:
        """What time it is there; None when nobody knows.

        An event that comes next is taken to come as late as the last one did: who loads last year's events is in last
        year, however slowly. Less than a minute is not late; after a minute of silence the wall clock counts, as it
        does where nothing ever came.

        Args:
            loading: old events come in somewhere: what belongs here may still have to be loaded.
        """
        if self.time is None or self.appended is None:
            return None if loading else self.end
        if self.end is None:
            return min(self.time, self.appended)
        if self.late < SILENCE:
            return self.end
        passed = max(self.end - self.appended, timedelta())
        if loading and self.late >= LOAD:
            return self.time + min(passed, SILENCE)
        return self.end if passed >= SILENCE else self.time + passed


@dataclass(frozen=True)
class Watermark:
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

    def until(self, now: datetime) -> Watermark:
        """The checkpoint as far as it is no later than a time."""
        return Watermark({name: source.until(now) for name, source in self.sources.items()}, self.inputs)

    @classmethod
    def of(cls, record: RawRecord) -> Watermark:
        """The checkpoint in a record, no further than the broker's own time of it.

        Raises:
            ContractError: it is none.
        """
        checkpoint = cls.decode(record.value or b"")
        return checkpoint.until(moment_at(record.time)) if record.time else checkpoint

    @classmethod
    def decode(cls, value: bytes) -> Watermark:
        """The checkpoint in a record's value.

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
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ContractError(f"{value[:80]!r} says no time: {error!r}") from error


class LogTime:
    """The time as one partition of a process sees it: the least of its sources, each as far as its inputs are taken.

    Args:
        sources: every partition of every topic that the process listens to, as `topic/partition`.
        lateness: how late an event may come and hold time back; None = however late.
    """

    def __init__(self, sources: Iterable[str], lateness: timedelta | None = None) -> None:
        self._lateness = lateness
        self._at: dict[str, SourceTime] = dict.fromkeys(sources, SourceTime())
        self._told: dict[str, deque[tuple[int, SourceTime]]] = {source: deque() for source in self._at}
        self._seen = dict.fromkeys(self._at, -1)
        self.clock = datetime.min.replace(tzinfo=UTC)
        """The latest time by any wall clock that was told; log time is never later."""

    def tell(self, partition: int, checkpoint: Watermark) -> None:
        """Takes a checkpoint; it counts once this partition's inputs are taken as far as the checkpoint says."""
        needed = checkpoint.inputs.get(partition, 0)
        for name, source in checkpoint.sources.items():
            self.clock = max(self.clock, source.end or source.appended or self.clock)
            if name in self._at and needed > self._seen[name]:
                told = self._told[name]
                if told and told[-1][0] == needed:
                    told.pop()
                told.append((needed, source.within(self._lateness)))

    def saw(self, source: str, time: datetime, appended: datetime, offset: int) -> None:
        """An input of this offset came from there: it is no later than this there, whatever was said before it."""
        if source in self._at:
            self._at[source] = SourceTime(time, appended).within(self._lateness)
            self._seen[source] = offset
            self.clock = max(self.clock, appended)
            told = self._told[source]
            while told and told[0][0] <= offset:
                told.popleft()

    def reach(self, next_offset: int) -> None:
        """The inputs before this one are taken: checkpoints that waited for them count."""
        for name, told in self._told.items():
            while told and told[0][0] <= next_offset:
                self._at[name] = told.popleft()[1]

    def now(self, next_offset: int) -> datetime | None:
        """The time, given the next input to be taken; None while a source has not said anything.

        A load is one thing: while old events come in anywhere, silence elsewhere tells nothing.
        """
        self.reach(next_offset)
        loading = any(source.is_loaded(self.clock) for source in self._at.values())
        found = [source.is_at(loading=loading) for source in self._at.values()]
        times = [at for at in found if at is not None]
        return min(times) if times and len(times) == len(found) else None


_NOBODY = -1
"""A partition of which no checkpoint says how far its inputs must be taken."""


@dataclass(frozen=True)
class WatermarkStatus:
    """The time as processors take it, all inputs being taken.

    `now` is None while nobody can tell it, as where a source is `silent`: not told of, or its router does not know.
    `slowest` is the source that is furthest behind; `told` is when routers last said anything, None = never as far as
    their topic remembers. `late` is how late the last event of the slowest source came.
    """

    now: datetime | None
    slowest: str
    late: timedelta
    silent: tuple[str, ...]
    told: datetime | None


def told_time(
    checkpoints: Iterable[RawRecord], sources: Iterable[str], lateness: timedelta | None = None
) -> WatermarkStatus:
    """The time by the checkpoints of routers, in the order they were written.

    Args:
        sources, lateness: see LogTime.
    """
    wanted = list(sources)
    known: dict[str, SourceTime] = {}
    time, told = LogTime(wanted, lateness), 0
    for record in checkpoints:
        try:
            checkpoint = Watermark.of(record)
        except ContractError:  # one of newer code; the next one may be readable
            continue
        time.tell(_NOBODY, checkpoint)
        known |= checkpoint.sources
        told = max(told, record.time)
    times = {source: known[source].within(lateness).is_at() if source in known else None for source in wanted}
    silent = tuple(sorted(source for source, at in times.items() if at is None))
    found = [(at, source) for source, at in times.items() if at is not None]
    slowest = min(found)[1] if found and not silent else ""
    late = known[slowest].within(lateness).late if slowest else timedelta()
    return WatermarkStatus(time.now(0), slowest, late, silent, moment_at(told) if told else None)
