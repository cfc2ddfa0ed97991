"""Finds the records that belong together with an id: two passes over the log, each with one comparison per record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

from leftfold.codec import header
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.engine.step import step_of
from leftfold.ports import LogReader, RawRecord
from leftfold.position import Position

__all__ = ["Found", "made_at", "search"]

_BATCH, _WAIT, _PATIENCE = 200, 0.2, 15.0
_BY_REFERENCE = ("dead_reference", b"true")
_TIMED, _AHEAD = 7, 3_600_000

Begun = Callable[[str], Position]
"""Where to begin to look for what has an id, or follows from it."""


@dataclass(frozen=True)
class Found:
    """The records of a trace, how many were looked at, and whether some before the end could not be read."""

    records: tuple[RawRecord, ...]
    looked: int
    is_short: bool = False


def made_at(id_: str) -> int | None:
    """When an id was made, in ms since 1970, as those of clients say (uuid7); None when it does not tell."""
    try:
        id = UUID(id_)  # what it is
    except ValueError:
        return None
    return id.int >> 80 if id.version == _TIMED else None


def search(
    reader: LogReader,
    id_: str,
    starts: Position,
    ends: Position,
    *,
    begun: Begun | None = None,
    watch: Stopwatch | None = None,
    patience: float = _PATIENCE,
) -> Found:
    """All records of the correlation that an id belongs to, be it a correlation id itself or that of any record.

    The first pass looks for the id. If a record that has it belongs to another correlation, a second one looks for
    that; a correlation id, as that of a client's command is its own, needs no second one.

    Args:
        begun: where passes may begin because of when an id was made. If something is missing then that may stand
            before it, everything is looked at after all; clocks may be wrong.
        watch: is told of the passes. patience: seconds to wait for what an open transaction hides.
    """
    reading = _Reading(reader, starts, ends, watch or Stopwatch(lambda progress: None), patience)
    if begun is not None:
        found = reading.trace(id_, begun)
        if _is_whole(found.records, reading.begin, starts):
            return found
    return reading.trace(id_, lambda id_: starts)


def _is_whole(records: tuple[RawRecord, ...], begin: Position, starts: Position) -> bool:
    """Whether nothing that is missing can stand before the place where the pass began.

    What follows from a record is written behind it, so whoever has all causes has everything; but for a command that
    was sent again, by a clock that is ahead: one that is an hour ahead may be ahead by more.
    """
    if begin == starts:
        return True
    steps = [step for record in records if (step := step_of(record)) is not None]
    ids = {step.id for step in steps}
    missing = [step for step in steps if step.cause and step.cause not in ids]
    cut = [step for step in missing if begin.offsets.get(step.beside) != starts.offsets.get(step.beside)]
    ahead = [step for step in steps if step.appended < (made_at(step.correlation) or 0) - _AHEAD]
    return bool(ids) and not cut and not ahead


class _Reading:
    """Passes over a span of the log; `begin` is where the last one began."""

    def __init__(self, reader: LogReader, starts: Position, ends: Position, watch: Stopwatch, patience: float) -> None:
        self._reader, self.begin, self._ends, self._watch, self._patience = reader, starts, ends, watch, patience
        self._looked, self._is_short = 0, False

    def trace(self, id_: str, begun: Begun) -> Found:
        """All records of the correlation of an id, from where each pass may begin."""
        wanted, self.begin = {id_.encode()}, begun(id_)
        while True:
            found, more = self._pass(wanted)
            if not more:
                return Found(tuple(found), self._looked, self._is_short)
            wanted, self.begin = wanted | more, begun(next(iter(more)).decode(errors="replace"))

    def _pass(self, wanted: set[bytes]) -> tuple[list[RawRecord], set[bytes]]:
        """The records of some correlations; or, as soon as one is met that belongs to another, that other."""
        pairs = {("ce_correlationid", one) for one in wanted}
        telling = {*pairs, *(("ce_id", one) for one in wanted), _BY_REFERENCE}
        found: list[RawRecord] = []
        for record in self._records():
            if telling.isdisjoint(record.headers):
                continue
            found.append(record)
            if _BY_REFERENCE not in record.headers and pairs.isdisjoint(record.headers):
                more = {header(record.headers, "ce_correlationid")} - {b""} - wanted
                if more:
                    return found, more
        return found, set()

    def _records(self) -> Iterator[RawRecord]:
        """One pass, up to the ends or to where nothing more can be read."""
        starts = self.begin
        offsets = ((t, p, end) for t, ends in self._ends.offsets.items() for p, end in ends.items())
        self._watch.begin("search", sum(max(0, end - starts.next_offset(t, p)) for t, p, end in offsets))
        self._reader.seek(starts)
        self._looked, heard = 0, time.monotonic()
        while not self._reader.position().covers(self._ends):
            records = self._reader.poll(_BATCH, _WAIT)
            if records:
                heard = time.monotonic()
                self._looked += len(records)
                self._watch.tell(len(records))
                yield from records
            elif time.monotonic() - heard > self._patience:
                self._is_short = True
                return
