"""How late it is in the log, for people: what routers said last of each source of a process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from leftfold.engine.log_time import SourceTime, TimeMark
from leftfold.errors import ContractError
from leftfold.ports import RawRecord

__all__ = ["ToldTime", "told_time"]


@dataclass(frozen=True)
class ToldTime:
    """The time of the slowest source.

    `now` is None while a source is not told of, or nobody can tell its time; those are `silent`. `slowest` is where
    `now` comes from; `told` is when routers last said anything, None = never as far as their topic remembers.
    """

    now: datetime | None
    slowest: str
    silent: tuple[str, ...]
    told: datetime | None


def told_time(marks: Iterable[RawRecord], sources: Iterable[str]) -> ToldTime:
    """The time by the marks of routers, in the order they were written.

    Args:
        sources: every partition of every topic that the process listens to, as `topic/partition`.
    """
    known: dict[str, SourceTime] = {}
    told = 0
    for record in marks:
        try:
            known |= TimeMark.decode(record.value or b"").sources
        except ContractError:  # one of newer code; the next one may be readable
            continue
        told = max(told, record.time)
    times = {source: known[source].is_at() if source in known else None for source in sources}
    silent = tuple(sorted(source for source, at in times.items() if at is None))
    found = [(at, source) for source, at in times.items() if at is not None]
    now, slowest = min(found) if found and not silent else (None, "")
    return ToldTime(now, slowest, silent, datetime.fromtimestamp(told / 1000, UTC) if told else None)
