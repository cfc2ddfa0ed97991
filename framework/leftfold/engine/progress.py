"""Progress reports of rebuilds, and reports of a worker to its operator, each kind at most every 30 s."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from leftfold.ports import protocols
from leftfold.ports.instruments import (
    ATTEMPT_SECONDS,
    BATCH_SIZE,
    COMMANDS,
    CONSUMED,
    ROTATIONS,
    STATE_BYTES,
    STATE_STREAMS,
    TIMER_LATENESS,
    TRANSACTION_SECONDS,
    Attributes,
    ago,
    is_measured,
)
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Batch

__all__ = ["BatchReporter", "ProgressReport", "RebuildProgress", "ReportLimiter", "Stopwatch"]


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


ProgressReport = Callable[[RebuildProgress], None]


@dataclass
class Stopwatch:
    """Times the phases of a rebuild and reports their progress, at most every 0.2 s."""

    report: ProgressReport
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

    def __init__(self, report: protocols.Report, clock: Callable[[], float]) -> None:
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


_OUTCOMES = {"duplicates": "duplicate", "late": "unknown", "dead": "dead-lettered"}
"""The outcome in metrics of what a batch counts, where it has another name."""
_PROCESSING = {"messaging.system": "kafka", "messaging.operation.name": "process"}


class BatchReporter:
    """Measures what committed batches have done, and reports their failures, dead letters and dropped answers.

    Args:
        measured: the attributes of the worker's metrics.
        report, clock: as for `ReportLimiter`.
    """

    def __init__(
        self, category: str, measured: Attributes, report: protocols.Report, clock: Callable[[], float]
    ) -> None:
        self._category, self._measured, self._limiter = category, measured, ReportLimiter(report, clock)
        self._failed = "react failed" if measured["leftfold.kind"] == "process" else "decide failed"
        self._rotations = 0

    def taken(self, count: int, seconds: float) -> None:
        """Measures a batch of so many records."""
        ATTEMPT_SECONDS.record(seconds, {**self._measured, **_PROCESSING})
        CONSUMED.record(count, {**self._measured, **_PROCESSING})
        BATCH_SIZE.record(count, self._measured)

    def fired(self, batch: Batch) -> None:
        """Measures how late the timers are whose due records a batch holds."""
        for out in chain.from_iterable(batch.sent.values()) if is_measured() else ():
            TIMER_LATENESS.record(ago(json.loads(out.value or b"")["at"]), self._measured)

    def ended(self, outcome: str, seconds: float, rotations: int) -> None:
        """Measures a transaction that has ended; `rotations` is how many producers were replaced since the start."""
        TRANSACTION_SECONDS.record(seconds, {**self._measured, "leftfold.outcome": outcome})
        ROTATIONS.record(rotations - self._rotations, self._measured)
        self._rotations = rotations

    def committed(self, batch: Batch, written: int, stores: Iterable[Sized]) -> None:
        """Measures and reports a committed batch.

        Args:
            written: how many bytes of state it wrote. stores: the streams of each partition of the worker.
        """
        for what, count in batch.counts.items():
            COMMANDS.record(count, {**self._measured, "leftfold.outcome": _OUTCOMES.get(what, what)})
        STATE_BYTES.record(written, self._measured)
        if is_measured():
            STATE_STREAMS.record(sum(map(len, stores)), self._measured)
        for kind, failure in batch.failures.items():
            details = {"why": failure.why[:500], "exception": failure.trace}
            self._limiter.report(self._failed, details, kind=kind, times=failure.times)
        if batch.dead:
            why = header(batch.dead[-1].headers, "dead_reason").decode(errors="replace")
            details = {"why": why[:500], "do": f"leftfold dead list {self._category}"}
            self._limiter.report("dead letters", details, times=len(batch.dead))
        if dropped := sum(batch.answers_dropped.values()):
            reason = "a key had more answers within a minute than are remembered; a repeat may be decided again"
            self._limiter.report("answers dropped", {"why": reason}, times=dropped)
