"""Progress reports of rebuilds, and a limiter that sends each kind of report at most every 30 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RebuildProgress", "Report", "ReportLimiter", "Stopwatch"]


_INTERVAL = 0.2


@dataclass(frozen=True)
class RebuildProgress:
    """The state of a rebuild at one moment.

    Args:
        phase: `plan`, `fold`, `seal`, `catch up`, `compare` or `swap`.
        done, total: events read and events expected; 0 of 0 in phases that read none.
        seconds: since the phase began.
    """

    phase: str
    done: int = 0
    total: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Events per second so far."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds that the phase still takes at this rate; None while no event has been read."""
        return (self.total - self.done) / self.rate if self.done else None


Report = Callable[[RebuildProgress], None]


@dataclass
class Stopwatch:
    """Times the phases of a rebuild and reports their progress, at most every 0.2 s."""

    report: Report
    seconds: dict[str, float] = field(default_factory=dict)
    done: int = 0
    _phase: str = ""
    _total: int = 0
    _began: float = 0.0
    _reported: float = 0.0

    def begin(self, phase: str, total: int = 0) -> None:
        """Ends the current phase, if any, and begins another."""
        self.end()
        self._phase, self._total, self.done = phase, total, 0
        self._began = self._reported = time.perf_counter()
        self.report(RebuildProgress(phase, 0, total))

    def tell(self, count: int) -> None:
        """Counts events of this phase and reports them when a report is due."""
        self.done += count
        now = time.perf_counter()
        if now - self._reported >= _INTERVAL:
            self._reported = now
            self.report(RebuildProgress(self._phase, self.done, self._total, now - self._began))

    def end_phase(self) -> float:
        """Ends the phase; returns the total seconds of all phases with its name."""
        phase = self._phase
        self.end()
        return self.seconds[phase]

    def end(self) -> None:
        """Ends the phase."""
        if self._phase:
            spent = time.perf_counter() - self._began
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + spent
            self.report(RebuildProgress(self._phase, self.done, self._total, spent))
            self._phase = ""


AGAIN, MOST = 30.0, 1000


class ReportLimiter:
    """Limits reports: forwards the first of a kind, and later ones at most every 30 s.

    Args:
        report: called with (what, details); `times` in the details counts the events since the last report.
        clock: monotonic seconds.
    """

    def __init__(self, report: Callable[[str, Mapping[str, Any]], None], clock: Callable[[], float]) -> None:
        self._report, self._clock = report, clock
        self._seen: dict[str, tuple[float, int]] = {}

    def report(self, what: str, details: Mapping[str, Any], *, kind: str = "", times: int = 1) -> None:
        """Forwards the report, or counts it for the next report of this kind."""
        now, kind = self._clock(), kind or what
        at, count = self._seen.get(kind, (now - AGAIN, 0))
        if now - at < AGAIN:
            self._seen[kind] = at, count + times
            return
        if len(self._seen) >= MOST:
            self._seen.clear()
        self._seen[kind] = now, 0
        self._report(what, {**details, "times": count + times})
