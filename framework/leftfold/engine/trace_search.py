"""Finds the records that belong together with an id: two passes over the log, each with one comparison per record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from leftfold.codec import header
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.ports import LogReader, RawRecord
from leftfold.position import Position

__all__ = ["Found", "search"]

_BATCH, _WAIT, _PATIENCE = 200, 0.2, 15.0
_BY_REFERENCE = ("dead_reference", b"true")


@dataclass(frozen=True)
class Found:
    """The records of a trace, how many were looked at, and whether some before the end could not be read."""

    records: tuple[RawRecord, ...]
    looked: int
    is_short: bool = False


def search(
    reader: LogReader,
    id_: str,
    starts: Position,
    ends: Position,
    *,
    watch: Stopwatch | None = None,
    patience: float = _PATIENCE,
) -> Found:
    """All records of the correlation that an id belongs to, be it a correlation id itself or that of any record.

    The first pass looks for the id. If a record that has it belongs to another correlation, a second one looks for
    that; a correlation id, as that of a client's command is its own, needs no second one.

    Args:
        watch: is told of the passes. patience: seconds to wait for what an open transaction hides.
    """
    reading = _Reading(reader, starts, ends, watch or Stopwatch(lambda progress: None), patience)
    wanted = {id_.encode()}
    while True:
        pairs = {("ce_correlationid", one) for one in wanted}
        telling = {*pairs, *(("ce_id", one) for one in wanted), _BY_REFERENCE}
        found: list[RawRecord] = []
        more: set[bytes] = set()
        for record in reading.records():
            if telling.isdisjoint(record.headers):
                continue
            found.append(record)
            if _BY_REFERENCE not in record.headers and pairs.isdisjoint(record.headers):
                more = {header(record.headers, "ce_correlationid")} - {b""} - wanted
                if more:
                    break
        if not more:
            return Found(tuple(found), reading.looked, reading.is_short)
        wanted |= more


class _Reading:
    """Passes over a span of the log."""

    def __init__(self, reader: LogReader, starts: Position, ends: Position, watch: Stopwatch, patience: float) -> None:
        self._reader, self._starts, self._ends, self._watch, self._patience = reader, starts, ends, watch, patience
        self.looked, self.is_short = 0, False

    def records(self) -> Iterator[RawRecord]:
        """One pass, up to the ends or to where nothing more can be read."""
        starts = self._starts
        offsets = ((t, p, end) for t, ends in self._ends.offsets.items() for p, end in ends.items())
        self._watch.begin("search", sum(max(0, end - starts.next_offset(t, p)) for t, p, end in offsets))
        self._reader.seek(starts)
        self.looked, heard = 0, time.monotonic()
        while not self._reader.position().covers(self._ends):
            records = self._reader.poll(_BATCH, _WAIT)
            if records:
                heard = time.monotonic()
                self.looked += len(records)
                self._watch.tell(len(records))
                yield from records
            elif time.monotonic() - heard > self._patience:
                self.is_short = True
                return
