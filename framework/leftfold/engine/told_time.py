"""How late it is in the log, for people: what routers said last of each source of a process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from leftfold.engine.log_time import LogTime, SourceTime, TimeMark
from leftfold.errors import ContractError
from leftfold.moments import moment_at
from leftfold.ports import RawRecord

__all__ = ["ToldTime", "told_time"]

_NOBODY = -1
"""A partition of which no mark says how far its inputs must be taken."""


@dataclass(frozen=True)
class ToldTime:
    """The time as lanes take it, all inputs being taken.

    `now` is None while nobody can tell it, as where a source is `silent`: not told of, or its router does not know.
    `slowest` is the source that is furthest behind; `told` is when routers last said anything, None = never as far as
    their topic remembers. `late` is how late the last event of the slowest source came.
    """

    now: datetime | None
    slowest: str
    late: timedelta
    silent: tuple[str, ...]
    told: datetime | None


def told_time(marks: Iterable[RawRecord], sources: Iterable[str], lateness: timedelta | None = None) -> ToldTime:
    """The time by the marks of routers, in the order they were written.

    Args:
        sources, lateness: see LogTime.
    """
    wanted = list(sources)
    known: dict[str, SourceTime] = {}
    time, told = LogTime(wanted, lateness), 0
    for record in marks:
        try:
            mark = TimeMark.of(record)
        except ContractError:  # one of newer code; the next one may be readable
            continue
        time.tell(_NOBODY, mark)
        known |= mark.sources
        told = max(told, record.time)
    times = {source: known[source].within(lateness).is_at() if source in known else None for source in wanted}
    silent = tuple(sorted(source for source, at in times.items() if at is None))
    found = [(at, source) for source, at in times.items() if at is not None]
    slowest = min(found)[1] if found and not silent else ""
    late = known[slowest].within(lateness).late if slowest else timedelta()
    return ToldTime(time.now(0), slowest, late, silent, moment_at(told) if told else None)
