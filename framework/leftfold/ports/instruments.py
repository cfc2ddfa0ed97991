"""The spans and metrics of Leftfold: every name with its unit, recorded through the API of OpenTelemetry.

A process without an SDK records nothing, and does not even import the API: each call then costs a look into
`sys.modules`. Loops that run under the simulator use this module's clock, so that measuring never moves theirs.

Names follow the semantic conventions of OpenTelemetry for messaging; those without one begin with `leftfold.`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from leftfold.errors import ConflictError, DomainError, OutcomeUnknown
from leftfold.ports.protocols import Headers
from leftfold.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = [
    "ACT", "ATTEMPT_SECONDS", "BATCH_SIZE", "COMMANDS", "COMMAND_SECONDS", "CONSUMED", "DEAD_LETTERS", "DECIDE",
    "EVENTS_BEHIND", "FLUSH", "FRESHNESS", "GENERATION_AGE", "INSTRUMENTS", "LOG_SIZE", "MOST_TRACED",
    "OPERATION_SECONDS", "PARKED", "PROBLEMS", "PROJECT", "REACT", "RESTARTS", "RESTORE_SECONDS", "ROTATIONS",
    "RUNNING", "SECONDS_BEHIND", "SEND", "SENT", "STATE_BYTES", "STATE_PER_COMMAND", "STATE_STREAMS", "SURVEY_AGE",
    "SURVEY_SECONDS", "TAKE", "TIMERS_OVERDUE", "TIMER_LATENESS", "TRANSACTION_SECONDS", "VIEW_FLUSH_ROWS",
    "VIEW_FLUSH_SECONDS", "VIEW_ROWS", "Attributes", "Instrument", "Operation", "Span", "ago", "by_principal",
    "clock", "is_measured", "is_sampled", "is_traced", "look_again", "member", "outcome_of", "recorded_by", "traced",
    "traceparent",
]  # fmt: skip

Attributes: TypeAlias = Mapping[str, str | int | float | bool]

MOST_TRACED = 16
"""Most records of one batch that get a span, and most links of a span: so a large batch spends little time on them."""
_TRACEPARENT = "traceparent"
_SAMPLED = b"13579bdf"
"""Last digits of a `traceparent` whose trace is recorded."""
_LOOK_SECONDS = 1.0
"""Seconds between looks for an SDK in a process that has only the API."""
_OF_THE_API = ("opentelemetry.trace", "opentelemetry.metrics")


def clock() -> float:
    """Seconds of a monotonic clock that is real even under the simulator."""
    return time.perf_counter()


def ago(at: str) -> float:
    """Seconds that a time (RFC 3339) lies in the past."""
    return time.time() - datetime.fromisoformat(at).timestamp()


def member(kind: str, name: str, **more: str) -> dict[str, str]:
    """The attributes of a member of an App: its kind, such as `decider` or `view`, and its name."""
    return {"leftfold.kind": kind, "leftfold.name": name, **{f"leftfold.{key}": value for key, value in more.items()}}


def by_principal(principal: str) -> dict[str, str]:
    """The attribute of a span for on whose behalf a command was sent; none when that is not known."""
    return {"enduser.id": principal} if principal else {}


def outcome_of(answer: object) -> str:
    """The outcome of a command in a word: accepted, rejected, conflict, unknown or failed."""
    if not isinstance(answer, BaseException):
        return "accepted"
    named = ((DomainError, "rejected"), (ConflictError, "conflict"), (OutcomeUnknown, "unknown"))
    return next((word for kind, word in named if isinstance(answer, kind)), "failed")


class _Recorder:
    """Makes spans and instruments of one pair of providers; without a provider it makes none."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self.providers = tracers, meters
        self.tracer = tracers.get_tracer("leftfold", __version__) if tracers is not None else None
        self.meter = meters.get_meter("leftfold", __version__) if meters is not None else None
        self._lock, self._methods = Lock(), dict[str, Callable[[float, Attributes], None]]()

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded."""
        return self.tracer is not None or self.meter is not None

    def method(self, instrument: Instrument) -> Callable[[float, Attributes], None] | None:
        """The function that records a value of an instrument."""
        if (found := self._methods.get(instrument.name)) is not None or self.meter is None:
            return found
        with self._lock:
            return self._methods.setdefault(instrument.name, instrument.made_by(self.meter))


class _Chosen:
    """The recorder of this process; `fixed` by tests, else found where the process has set up an SDK."""

    fixed: _Recorder | None = None
    found: _Recorder | None = None
    looked: float = float("-inf")
    """When no SDK was found, by `clock`."""


def _recorder() -> _Recorder | None:
    if _Chosen.fixed is not None:
        return _Chosen.fixed
    if "opentelemetry.trace" not in sys.modules and "opentelemetry.metrics" not in sys.modules:
        return None
    found = _Chosen.found
    if found is not None and not found.is_on and clock() - _Chosen.looked < _LOOK_SECONDS:
        return None
    from opentelemetry import metrics, trace

    tracers: TracerProvider | None = trace.get_tracer_provider()
    meters: MeterProvider | None = metrics.get_meter_provider()
    if found is None or found.providers != (tracers, meters):
        # The API's own providers do nothing, or stand for one that is still to come.
        known = [None if type(one).__module__.startswith(_OF_THE_API) else one for one in (tracers, meters)]
        found = _Chosen.found = _Recorder(*known)  # type: ignore[arg-type]  # in their order
        found.providers = tracers, meters
    _Chosen.looked = clock()
    return found if found.is_on else None


def look_again() -> None:
    """Looks for an SDK at the next call: one has just been set up, and the last look may be less than a second old."""
    _Chosen.found = None


@contextmanager
def recorded_by(tracers: TracerProvider | None = None, meters: MeterProvider | None = None) -> Iterator[None]:
    """Within the block, spans and metrics go to these providers instead of those of the process."""
    before, _Chosen.fixed = _Chosen.fixed, _Recorder(tracers, meters)
    try:
        yield
    finally:
        _Chosen.fixed = before


def is_traced() -> bool:
    """Whether spans are recorded."""
    found = _recorder()
    return found is not None and found.tracer is not None


def is_measured() -> bool:
    """Whether metrics are collected: for values that are not at hand."""
    found = _recorder()
    return found is not None and found.meter is not None


@dataclass(frozen=True)
class Instrument:
    """A metric: its name, unit and meaning. `observed` ones are asked for by a collector instead of recorded."""

    name: str
    kind: Literal["counter", "histogram", "gauge", "observed"]
    unit: str
    meaning: str
    bounds: tuple[float, ...] = ()

    def record(self, value: float, attributes: Attributes) -> None:
        """Adds to a counter, sets a gauge, or counts a value of a histogram; does nothing without an SDK."""
        found = _recorder()
        if found is not None and (method := found.method(self)) is not None:
            method(value, attributes)

    def made_by(self, meter: Any) -> Any:
        """Makes the instrument, and returns the function that records a value."""
        described = self.name, self.unit, self.meaning
        match self.kind:
            case "counter":
                return meter.create_counter(*described).add
            case "histogram":
                bounds = list(self.bounds) or None
                return meter.create_histogram(*described, explicit_bucket_boundaries_advisory=bounds).record
        return meter.create_gauge(*described).set


_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_SIZES = (1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10_000.0, 50_000.0)

COMMAND_SECONDS = Instrument(
    "leftfold.command.duration", "histogram", "s", "Time from a client's command to its answer, by outcome.", _FAST
)
COMMANDS = Instrument("leftfold.commands", "counter", "{command}", "Commands and inputs that workers took, by outcome.")
BATCH_SIZE = Instrument("leftfold.batch.size", "histogram", "{message}", "Records taken in one transaction.", _SIZES)
TRANSACTION_SECONDS = Instrument(
    "leftfold.transaction.duration", "histogram", "s", "Time of a transaction of a worker, by outcome.", _FAST
)
OPERATION_SECONDS = Instrument(
    "messaging.client.operation.duration", "histogram", "s", "Time of an operation of a Kafka client.", _FAST
)
ATTEMPT_SECONDS = Instrument(
    "messaging.process.duration", "histogram", "s", "Time to process a batch, or one event in a reaction.", _FAST
)
CONSUMED = Instrument("messaging.client.consumed.messages", "counter", "{message}", "Records that were processed.")
SENT = Instrument("messaging.client.sent.messages", "counter", "{message}", "Commands that a client has sent.")
ROTATIONS = Instrument("leftfold.producer.rotations", "counter", "{rotation}", "Transactional producers replaced.")
RESTORE_SECONDS = Instrument(
    "leftfold.restore.duration", "histogram", "s", "Time until assigned partitions were restored.", _SLOW
)
STATE_STREAMS = Instrument("leftfold.state.streams", "gauge", "{stream}", "Streams or instances that a worker holds.")
STATE_BYTES = Instrument("leftfold.state.written", "counter", "By", "Bytes of state records written.")
TIMER_LATENESS = Instrument(
    "leftfold.timer.lateness", "histogram", "s", "Time from when a timer was due until it fired.", _SLOW
)
VIEW_FLUSH_SECONDS = Instrument("leftfold.flush.duration", "histogram", "s", "Time of a flush of a view's rows.", _FAST)
VIEW_FLUSH_ROWS = Instrument("leftfold.flush.rows", "histogram", "{row}", "Rows of one flush.", _SIZES)
RESTARTS = Instrument("leftfold.restarts", "counter", "{restart}", "Processes that ended and were started again.")

RUNNING = Instrument("leftfold.running", "observed", "{process}", "Processes at work.")
EVENTS_BEHIND = Instrument("leftfold.lag", "observed", "{offset}", "Offsets between a position and the log's end.")
SECONDS_BEHIND = Instrument("leftfold.lag.duration", "observed", "s", "Age of the first record not processed.")
FRESHNESS = Instrument(
    "leftfold.view.freshness", "observed", "s", "Age of the newest event in the rows that readers see."
)
VIEW_ROWS = Instrument("leftfold.view.rows", "observed", "{row}", "Rows of the live generation.")
GENERATION_AGE = Instrument("leftfold.generation.age", "observed", "s", "Age of the live generation.")
PARKED = Instrument("leftfold.parked", "observed", "{item}", "Parked rows of views and parked events of reactions.")
DEAD_LETTERS = Instrument("leftfold.dead_letters", "observed", "{letter}", "Dead letters that wait for an operator.")
TIMERS_OVERDUE = Instrument("leftfold.timers.overdue", "observed", "{timer}", "Timers that are due and have not fired.")
STATE_PER_COMMAND = Instrument(
    "leftfold.state.command.size", "observed", "By", "Bytes of state per command, in the most expensive partition."
)
LOG_SIZE = Instrument("leftfold.log.size", "observed", "{offset}", "Offsets of the events or inputs of a member.")
PROBLEMS = Instrument("leftfold.problems", "observed", "{problem}", "Faults that `leftfold status` names.")
SURVEY_SECONDS = Instrument("leftfold.survey.duration", "observed", "s", "Time that the last survey took.")
SURVEY_AGE = Instrument("leftfold.survey.age", "observed", "s", "Age of the survey whose numbers these are.")

INSTRUMENTS: tuple[Instrument, ...] = tuple(one for one in globals().values() if isinstance(one, Instrument))
"""Every metric, in the order of this module."""


class Span:
    """A span that was started; the one without an SDK does nothing. In a `with` it is the current one of its thread."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Any = None) -> None:
        self._span, self._token = span, None

    def __bool__(self) -> bool:
        return self._span is not None and bool(self._span.is_recording())

    @property
    def traceparent(self) -> str:
        """The W3C header by which its children find it; '' when nothing is traced."""
        if self._span is None:
            return ""
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}" if found.is_valid else ""

    def note(self, attributes: Attributes) -> None:
        """Adds attributes."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def fail(self, kind: str, why: str = "") -> None:
        """Marks the span as failed, by the kind of its error."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, why or None))

    def end(self) -> None:
        """Ends the span."""
        if self._span is not None:
            self._span.end()

    def __enter__(self) -> Self:
        if self._span is not None:
            from opentelemetry import context, trace

            self._token = context.attach(trace.set_span_in_context(self._span))  # type: ignore[assignment]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._span is not None:
            from opentelemetry import context

            if error is not None:
                self.fail(type(error).__name__)
            if self._token is not None:
                context.detach(self._token)
            self.end()


_NO_SPAN = Span()


@dataclass(frozen=True)
class Operation:
    """A kind of span, named `{name} {destination}` by the conventions for messaging."""

    name: str
    type: str
    kind: Literal["client", "producer", "consumer"]
    kafka: bool = True

    def span(
        self,
        destination: str,
        attributes: Attributes | None = None,
        *,
        parent: str | bytes | None = None,
        links: Iterable[str | bytes] = (),
    ) -> Span:
        """Starts a span.

        Args:
            destination: the topic, view or reaction.
            parent: the `traceparent` of its parent; '' = it begins a trace, None = the current span is its parent.
            links: of other spans that lead here: at most 16.
        """
        found = _recorder()
        if found is None or found.tracer is None:
            return _NO_SPAN
        from opentelemetry import trace
        from opentelemetry.context import Context

        fixed: dict[str, Any] = {}
        if self.kafka:
            fixed = {
                "messaging.system": "kafka",
                "messaging.destination.name": destination,
                "messaging.operation.name": self.name,
                "messaging.operation.type": self.type,
            }
        linked = [trace.Link(one) for text in links if (one := _span_context(text)) is not None][:MOST_TRACED]
        above = None if parent is None else Context()
        if parent and (remote := _span_context(parent)) is not None:
            above = trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())
        name, kind = f"{self.name} {destination}", trace.SpanKind[self.kind.upper()]
        return Span(found.tracer.start_span(name, above, kind, {**fixed, **(attributes or {})}, linked))


SEND = Operation("send", "send", "producer")
DECIDE = Operation("decide", "process", "consumer")
REACT = Operation("react", "process", "consumer")
TAKE = Operation("process", "process", "consumer")
PROJECT = Operation("project", "process", "consumer")
FLUSH = Operation("flush", "settle", "client", kafka=False)
ACT = Operation("act", "process", "consumer", kafka=False)


def _span_context(text: str | bytes) -> Any:
    """The context in a `traceparent`; None = it is none."""
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {_TRACEPARENT: text.decode(errors="replace") if isinstance(text, bytes) else text}
    found = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    return found if found.is_valid else None


def traceparent() -> str:
    """The header of the current span of this thread or task; '' when nothing is traced."""
    if not is_traced():
        return ""
    from opentelemetry import trace

    return Span(trace.get_current_span()).traceparent


def is_sampled(text: bytes) -> bool:
    """Whether a `traceparent` is of a trace that is recorded."""
    return text[-1:] in _SAMPLED and text != b""


def traced(records: Iterable[Headers]) -> list[bytes]:
    """The headers `traceparent` of recorded traces among the first 16 records; none without an SDK."""
    if not is_traced():
        return []
    found = (value for headers in islice(records, MOST_TRACED) for name, value in headers if name == _TRACEPARENT)
    return [value for value in found if is_sampled(value)]
