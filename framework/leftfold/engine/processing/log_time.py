"""The time of the log, by which timers are due, and how late each source is."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from leftfold.errors import ContractError
from leftfold.model.state_codec import time_at, time_in
from leftfold.ports.message_codec import utc_text
from leftfold.ports.protocols import PartitionId, RawRecord

__all__ = ["SILENCE", "LogTime", "SourceClock", "SourceTime", "Watermark", "WatermarkStatus", "reported_time"]

_TIMES = ("time", "appended", "end")
SILENCE = timedelta(seconds=60)
"""After so much silence a partition at its end follows the wall clock, although its last event came late."""
LOAD = timedelta(days=1)
"""Events that come so late count as a load of old events."""
_MOST_PENDING = 256


@dataclass(frozen=True)
class SourceTime:
    """How far a partition of events is routed: the time of its last event, and when that was appended.

    `end` is when the partition had no further event, None if it has.
    """

    time: datetime | None = None
    appended: datetime | None = None
    end: datetime | None = None

    @property
    def late(self) -> timedelta:
        """How late the last event came."""
        return timedelta() if self.time is None or self.appended is None else self.appended - self.time

    def within(self, lateness: timedelta | None) -> SourceTime:
        """The same, with its last event at most so late; None = no limit."""
        if lateness is None or self.appended is None or self.late <= lateness:
            return self
        return replace(self, time=self.appended - lateness)

    def is_loaded(self, clock: datetime) -> bool:
        """Whether old events are being loaded here, given the wall clock's time."""
        return self.appended is not None and self.late >= LOAD and clock - self.appended < SILENCE

    def until(self, now: datetime) -> SourceTime:
        """The same, no later than a time. A router whose clock is ahead must not move time that cannot move back."""
        appended, end = (None if at is None else min(at, now) for at in (self.appended, self.end))
        return SourceTime(self.time, appended, end)

    def event_time(self, *, loading: bool = False) -> datetime | None:
        """The event time of this source; None when it is unknown.

        The next event is assumed to come as late as the last one did: a load of last year's events is in last year,
        however slow it is. Less than a minute is not late; after a minute of silence the wall clock counts, as it does
        where no event ever came.

        Args:
            loading: old events are being loaded in some source: this one may still get some.
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
    """The watermark of a router: the time of each source, and the offsets up to which its inputs are written.

    `sources` are by `topic/partition`; `inputs` by partition of the process. `nexts` are the next offsets of the
    sources: every event before them is routed. Routers of older code leave them out.
    """

    sources: Mapping[str, SourceTime] = field(default_factory=dict)
    inputs: Mapping[int, int] = field(default_factory=dict)
    nexts: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The watermark record's value."""
        sources = {
            name: {what: utc_text(at) for what, at in vars(source).items() if at is not None}
            for name, source in self.sources.items()
        }
        fields = {"sources": sources, "inputs": self.inputs, "nexts": self.nexts}
        return json.dumps(fields, separators=(",", ":")).encode()

    def until(self, now: datetime) -> Watermark:
        """The watermark, limited to a time."""
        return Watermark({name: source.until(now) for name, source in self.sources.items()}, self.inputs, self.nexts)

    @classmethod
    def of(cls, record: RawRecord) -> Watermark:
        """The watermark in a record, limited to the broker's time of the record.

        Raises:
            ContractError: the record holds none.
        """
        watermark = cls.decode(record.value or b"")
        return watermark.until(time_at(record.time)) if record.time else watermark

    @classmethod
    def decode(cls, value: bytes) -> Watermark:
        """The watermark in a record's value.

        Raises:
            ContractError: the value holds none.
        """
        try:
            fields = json.loads(value)
            sources = {
                name: SourceTime(**{what: _time(times[what]) for what in _TIMES if what in times})
                for name, times in fields["sources"].items()
            }
            inputs = {int(partition): int(end) for partition, end in fields["inputs"].items()}
            return cls(sources, inputs, {name: int(offset) for name, offset in fields.get("nexts", {}).items()})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ContractError(f"{value[:80]!r} says no time: {error!r}") from error


def _time(text: str) -> datetime:
    if (time := time_in(text.encode())) is None:
        raise ValueError(f"{text!r} is no time with its zone")
    return time


class SourceClock:
    """The event time of each source partition that a router reads, for the watermarks it writes.

    Args:
        silence: after so much silence a partition at its end follows the wall clock, although the time of its last
            event is unknown.
    """

    def __init__(self, silence: timedelta = SILENCE) -> None:
        self._silence = silence
        self._since: dict[PartitionId, datetime] = {}
        self._last: dict[PartitionId, SourceTime] = {}
        self._ahead: dict[PartitionId, dict[int, SourceTime]] = {}

    def hold(self, place: PartitionId, now: datetime) -> None:
        """Takes a source partition; its time is unknown until an event of it is routed."""
        self._since[place], self._ahead[place] = now, {}

    def drop(self, places: Iterable[PartitionId]) -> None:
        """Drops source partitions that another router reads."""
        for place in places:
            for known in (self._since, self._last, self._ahead):
                known.pop(place, None)

    def routed(self, record: RawRecord, time: datetime | None) -> None:
        """Records the time of an event that is routed or needs no input; ignored if its partition was dropped."""
        ahead = self._ahead.get(record.place)
        if ahead is not None and time is not None:
            ahead[record.offset] = SourceTime(time, time_at(record.time))

    def time(self, place: PartitionId, frontier: int, now: datetime, *, is_at_end: bool) -> SourceTime:
        """The time of a source partition.

        Args:
            frontier: all events before this offset are routed. is_at_end: no event is at it or behind it.
        """
        ahead = self._ahead[place]
        if routed := [offset for offset in ahead if offset < frontier]:
            self._last[place] = ahead[max(routed)]
            self._ahead[place] = {offset: at for offset, at in ahead.items() if offset >= frontier}
        last = self._last.get(place)
        if not is_at_end:
            return last or SourceTime()
        if last is not None:
            return replace(last, end=now)
        # Another router routed the last event, and only that router knows its time; after a minute of silence it no
        # longer matters.
        return SourceTime(end=now) if not frontier or now - self._since[place] >= self._silence else SourceTime()


class LogTime:
    """The log time of one process partition: the least of its sources, each as far as its inputs are taken.

    Args:
        sources: every partition of every topic that the process listens to, as `topic/partition`.
        lateness: how late an event may come and hold time back; None = no limit.
    """

    def __init__(self, sources: Iterable[str], lateness: timedelta | None = None) -> None:
        self._lateness = lateness
        self._at: dict[str, SourceTime] = dict.fromkeys(sources, SourceTime())
        self._pending: dict[str, deque[tuple[int, SourceTime]]] = {source: deque() for source in self._at}
        self._seen = dict.fromkeys(self._at, (-1, -1))
        """The last input of each source: its offset, and the highest offset of an event of that source so far."""
        self.clock = datetime.min.replace(tzinfo=UTC)
        """The latest reported time by any wall clock; log time is never later."""

    def tell(self, partition: int, watermark: Watermark) -> None:
        """Takes a watermark; it counts once this partition's inputs are taken as far as the watermark says.

        An input behind that offset is newer than the watermark, unless the watermark's router has routed its event
        before: then it is a duplicate, which a request that arrived late may have written.

        A watermark replaces those before it that wait for as many inputs or more. Of more than 256 that wait, every
        second one is left out: without it log time comes later, never earlier, so no timer overtakes an input.
        """
        needed = watermark.inputs.get(partition, 0)
        for name, source in watermark.sources.items():
            self.clock = max(self.clock, source.end or source.appended or self.clock)
            if name not in self._at:
                continue
            offset, origin = self._seen[name]
            if needed > offset or watermark.nexts.get(name, -1) > origin:
                pending = self._pending[name]
                while pending and pending[-1][0] >= needed:
                    pending.pop()
                pending.append((needed, source.within(self._lateness)))
                if len(pending) > _MOST_PENDING:
                    self._pending[name] = deque(list(pending)[::-2][::-1])  # with the last one

    def saw(self, source: str, time: datetime, appended: datetime, offset: int, origin: int) -> None:
        """Records an input with this offset from a source: earlier watermarks of that source no longer count.

        Args:
            origin: the offset of its event in the source.
        """
        if source in self._at:
            self._at[source] = SourceTime(time, appended).within(self._lateness)
            self._seen[source] = offset, max(origin, self._seen[source][1])
            self.clock = max(self.clock, appended)
            pending = self._pending[source]
            while pending and pending[0][0] <= offset:
                pending.popleft()

    def reach(self, next_offset: int) -> None:
        """Applies the watermarks that waited for the inputs before this offset."""
        for name, pending in self._pending.items():
            while pending and pending[0][0] <= next_offset:
                self._at[name] = pending.popleft()[1]

    def now(self, next_offset: int) -> datetime | None:
        """The log time, given the next input to be taken; None while a source's time is unknown.

        While old events are being loaded in any source, silence of another one gives no time.
        """
        self.reach(next_offset)
        loading = any(source.is_loaded(self.clock) for source in self._at.values())
        found = [source.event_time(loading=loading) for source in self._at.values()]
        times = [at for at in found if at is not None]
        return min(times) if times and len(times) == len(found) else None


_ALL_TAKEN = -1
"""A partition for which no watermark requires inputs."""


@dataclass(frozen=True)
class WatermarkStatus:
    """The log time as processors see it once all inputs are taken.

    `now` is None while it is unknown, as where a source is `silent`: no watermark has its time. `slowest` is the source
    furthest behind, and `late` how late its last event came. The last field is when routers last wrote a watermark,
    None = never as far as their topic goes back.
    """

    now: datetime | None
    slowest: str
    late: timedelta
    silent: tuple[str, ...]
    reported: datetime | None


def reported_time(
    watermarks: Iterable[RawRecord], sources: Iterable[str], lateness: timedelta | None = None
) -> WatermarkStatus:
    """The log time by the watermarks of routers, in the order they were written.

    Args:
        sources, lateness: see LogTime.
    """
    wanted = list(sources)
    known: dict[str, SourceTime] = {}
    time, reported = LogTime(wanted, lateness), 0
    for record in watermarks:
        try:
            watermark = Watermark.of(record)
        except ContractError:  # one of newer code; the next one may be readable
            continue
        time.tell(_ALL_TAKEN, watermark)
        known |= watermark.sources
        reported = max(reported, record.time)
    times = {source: known[source].within(lateness).event_time() if source in known else None for source in wanted}
    silent = tuple(sorted(source for source, at in times.items() if at is None))
    found = [(at, source) for source, at in times.items() if at is not None]
    slowest = min(found)[1] if found and not silent else ""
    late = known[slowest].within(lateness).late if slowest else timedelta()
    return WatermarkStatus(time.now(0), slowest, late, silent, time_at(reported) if reported else None)
