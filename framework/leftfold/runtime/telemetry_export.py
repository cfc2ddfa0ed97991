"""Sets up the SDK of OpenTelemetry for a process, and serves the metrics of all parts of a run at one address.

Each part answers on a socket of its own in a private directory, and the supervisor asks them when Prometheus asks it
(decision 54). What needs a look from outside comes from the survey, once for all scrapes of an interval.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.model.app import App
from leftfold.model.keys import NO_ROW
from leftfold.ports import instruments
from leftfold.ports.instruments import Instrument, ago, clock, member
from leftfold.runtime.connect import extras
from leftfold.runtime.lifecycle import end_all
from leftfold.runtime.project import Usage
from leftfold.version import __version__

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = [
    "ObservedApps", "PartMetrics", "TelemetrySettings", "answer_scrapes", "check_address", "collected", "measured_run",
    "observations", "parts_directory",
]  # fmt: skip

_log = logging.getLogger("leftfold.metrics")
_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 2.0  # a part may take so long to answer a scrape
_END = b"# EOF\n"  # of a part's answer
_SURVEY_SECONDS = 5.0  # that a scrape waits for a survey; after that the numbers of the one before are given
_SENDING_SECONDS = 3.0  # for what a part has not sent when it ends, of the 15 s that it has for that
_MOST_STATES = 20_000
_LONGEST_DIRECTORY, _HIGHEST_PORT = 83, 65535


class TelemetrySettings(BaseSettings):
    """Where metrics and traces go.

    Args:
        metrics: `HOST:PORT` of `/metrics`, `LEFTFOLD_METRICS`; '' = nowhere.
        directory: where the parts of a run answer their supervisor; the supervisor sets it.
        endpoint, traces, metrics_endpoint: of a collector that takes OTLP over HTTP, in the standard variables
            `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` and the like; '' = nowhere.
        disabled: `OTEL_SDK_DISABLED`.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)

    metrics: str = Field(default="", validation_alias="LEFTFOLD_METRICS")
    directory: str = Field(default="", validation_alias="LEFTFOLD_METRICS_DIRECTORY")
    endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    traces: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    metrics_endpoint: str = Field(default="", validation_alias="OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    service: str = Field(default="", validation_alias="OTEL_SERVICE_NAME")
    disabled: bool = Field(default=False, validation_alias="OTEL_SDK_DISABLED")

    @property
    def sends_traces(self) -> bool:
        """Whether a collector is to get traces."""
        return bool(self.endpoint or self.traces) and not self.disabled

    @property
    def sends_metrics(self) -> bool:
        """Whether a collector is to get metrics."""
        return bool(self.endpoint or self.metrics_endpoint) and not self.disabled


@contextmanager
def collected(service: str, part: str, *, scraped: bool = False) -> Iterator[Callable[[], bytes]]:
    """Within the block, this process records spans and metrics; yields its metrics as text for Prometheus.

    Without `scraped`, and without a collector in the environment, nothing is set up and nothing is imported.

    Args:
        service: the name of the service for collectors, unless the environment names one. part: of a run.

    Raises:
        ConfigurationError: `leftfold[telemetry]` is not installed.
    """
    settings = TelemetrySettings()
    scraped = scraped or bool(settings.directory)
    if settings.disabled or not (scraped or settings.sends_traces or settings.sends_metrics):
        yield bytes
        return
    with extras():
        from opentelemetry.sdk.resources import Resource
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    with ExitStack() as opened:
        registry = CollectorRegistry()
        instance = f"{socket.gethostname()}:{part}:{os.getpid()}"  # a machine may have two of a part
        resource = Resource.create({"service.name": settings.service or service, "service.instance.id": instance})
        ends: list[Callable[[], None]] = []
        opened.callback(end_all, _SENDING_SECONDS, ends)
        if scraped or settings.sends_metrics:
            ends.append(_collect_metrics(resource, registry, is_sent=settings.sends_metrics))
        if settings.sends_traces:
            ends.append(_collect_traces(resource))
        instruments.look_again()
        shown = partial(generate_latest, registry)
        if settings.directory:
            ProcessCollector(registry=registry)
            opened.callback(answer_scrapes(settings.directory, part, shown))
        yield shown


def _collect_metrics(resource: Any, registry: CollectorRegistry, *, is_sent: bool) -> Callable[[], None]:
    from opentelemetry import metrics
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    scraped = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    readers: list[MetricReader] = [scraped]
    if is_sent:
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _collect_traces(resource: Any) -> Callable[[], None]:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _socket_of(directory: str, part: str) -> Path:
    """The socket of a part, whatever its name: paths of sockets are short."""
    return Path(directory, blake2b(part.encode(), digest_size=8).hexdigest())


def answer_scrapes(directory: str, part: str, shown: Callable[[], bytes]) -> Callable[[], None]:
    """Answers each scrape of a part with its metrics; returns the function that ends it."""
    path = _socket_of(directory, part)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        while listener.fileno() >= 0:
            try:
                with listener.accept()[0] as connection:
                    connection.settimeout(_ANSWER_SECONDS)
                    connection.sendall(shown() + _END)
            except OSError:
                time.sleep(_RETRY_SECONDS)  # it is closed, no file is free, or the caller asks no more
            except Exception:  # noqa: BLE001  # this scrape fails; the next one is answered
                _log.exception("the metrics of %s could not be collected", part)

    threading.Thread(target=answer, name="metrics", daemon=True).start()
    return listener.close


@contextmanager
def parts_directory() -> Iterator[Path]:
    """A directory that only this user may enter, in which the parts of a run make their sockets.

    Raises:
        ConfigurationError: the path of the temporary directory is too long for sockets.
    """
    with tempfile.TemporaryDirectory(prefix="leftfold-") as found:
        if len(found) > _LONGEST_DIRECTORY:
            raise ConfigurationError(f"{found} is too long for the path of a socket; set TMPDIR to a shorter directory")
        yield Path(found)


class PartMetrics:
    """The metrics of the parts of a run, each series with the part's name, as a collector of `prometheus_client`.

    Args:
        directory: where each part has its socket. own: the metrics of the supervisor, which are of no part.
    """

    def __init__(self, directory: Path, parts: Sequence[str], own: Callable[[], bytes]) -> None:
        self._own = own
        self._sockets = {part: _socket_of(str(directory), part) for part in parts}
        self._asking = ThreadPoolExecutor(max(1, min(16, len(parts))), thread_name_prefix="metrics")

    def collect(self) -> Iterable[Metric]:
        """Asks every part at once; one that does not answer within two seconds is left out."""
        from prometheus_client.core import GaugeMetricFamily, Metric
        from prometheus_client.parser import text_string_to_metric_families

        up = GaugeMetricFamily("leftfold_part_up", "Whether a part of the run answers.", labels=["leftfold_part"])
        found: dict[str, Metric] = {}
        for part, text in zip(self._sockets, self._asking.map(_asked, self._sockets.values()), strict=True):
            up.add_metric([part], 0.0 if text is None else 1.0)
            for family in text_string_to_metric_families(text or ""):
                known = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, {**sample.labels, "leftfold_part": part}, sample.value)
        return [up, *text_string_to_metric_families(self._own().decode()), *found.values()]

    def close(self) -> None:
        """Ends the threads that ask."""
        self._asking.shutdown(cancel_futures=True)


def _asked(path: Path) -> str | None:
    """What a part answers; None = nothing whole within two seconds, or it is not running."""
    deadline, chunks = time.monotonic() + _ANSWER_SECONDS, list[bytes]()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(path))
            while chunk := connection.recv(1 << 16):
                chunks.append(chunk)
                connection.settimeout(max(0.01, deadline - time.monotonic()))
    except OSError:
        return None
    text = b"".join(chunks)
    # The part may have been killed as it answered: half a number would be another number.
    return text.decode() if text.endswith(_END) else None


def check_address(address: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`; the host is this machine's loopback where none is named.

    Raises:
        Usage: it has another form.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > _HIGHEST_PORT:
        raise Usage(f"--metrics {address}: it is no HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def measured_run(address: str, parts: Sequence[str], observed: ObservedApps) -> Iterator[dict[str, str]]:
    """Records what a supervisor knows, its survey included; yields the environment by which its parts take part.

    With an address, `/metrics` there has the numbers of all parts. Without one they go to a collector, or nowhere.

    Raises:
        Usage: the address is wrong. InfrastructureError: it is taken, or not there. ConfigurationError:
            `leftfold[telemetry]` is not installed.
    """
    with ExitStack() as opened:
        own = opened.enter_context(collected(observed.name, "run", scraped=bool(address)))
        if address or TelemetrySettings().sends_metrics:
            from opentelemetry import metrics

            observed.register(metrics.get_meter("leftfold", __version__))
        if not address:
            yield {}
            return
        directory = opened.enter_context(parts_directory())
        answers = opened.enter_context(closing(PartMetrics(directory, parts, own)))
        opened.enter_context(_served(address, answers))
        yield {"LEFTFOLD_METRICS_DIRECTORY": str(directory)}


@contextmanager
def _served(address: str, answers: PartMetrics) -> Iterator[None]:
    """Serves metrics at an address while the block runs."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(answers)
    host, port = check_address(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InfrastructureError(f"--metrics {address}: {error}") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Observation(NamedTuple):
    """One number of a survey, with the attributes of its member."""

    instrument: Instrument
    value: float
    attributes: Mapping[str, str]


_NUMBERS = {
    "workers": instruments.RUNNING,
    "running": instruments.RUNNING,
    "projectors": instruments.RUNNING,
    "rows": instruments.VIEW_ROWS,
    "dead": instruments.DEAD_LETTERS,
    "parked": instruments.PARKED,
    "offsets": instruments.LOG_SIZE,
    "inputs": instruments.LOG_SIZE,
    "per_command": instruments.STATE_PER_COMMAND,
    "overdue": instruments.TIMERS_OVERDUE,
    "lag": instruments.EVENTS_BEHIND,
    "behind": instruments.SECONDS_BEHIND,
    "untaken": instruments.SECONDS_BEHIND,
    "freshness": instruments.FRESHNESS,
    "age": instruments.GENERATION_AGE,
}
_ROUTER = {"running": "routers", "lag": "unrouted_lag", "behind": "unrouted"}
"""The numbers of a router, and their fields in the row of its process."""


def observations(row: Mapping[str, Any]) -> Iterator[Observation]:
    """The numbers in a row of the survey; those that are not known are left out."""
    kind, name = row["kind"], row["name"]
    if kind == "view":
        if "projectors" not in row or not row["is_current"]:
            return
        age, freshness = (ago(row[field]) if row[field] else None for field in ("created", "time"))
        parked = sum(key != NO_ROW for key in row["parked"])  # events without a row are no fault, and are not retried
        row = {**row, "parked": parked, "age": age, "freshness": freshness and max(0.0, freshness)}
    if kind == "process":
        yield from observations({"kind": "router", "name": name, **{new: row[old] for new, old in _ROUTER.items()}})
    for field, instrument in _NUMBERS.items():
        if row.get(field) is not None:
            yield Observation(instrument, row[field], member(kind, name))


class ObservedApps:
    """The survey of Apps as metrics: one at a time, on a thread of its own, at most one in `every` seconds."""

    def __init__(
        self, apps: Sequence[App], kafka: str | None, redis: str | None, archive: str = "", every: float = 10.0
    ) -> None:
        self.name = ", ".join(app.name for app in apps)
        self._apps, self._servers, self._every = apps, (kafka, redis, archive), every
        self._lock, self._done = threading.Lock(), threading.Event()
        self._found: list[Observation] = []
        self._began, self._ended, self.surveys = -every, clock(), 0

    def register(self, meter: Any) -> None:
        """Has a meter ask for the numbers when metrics are collected."""
        for one in instruments.INSTRUMENTS:
            if one.kind == "observed":
                meter.create_observable_gauge(one.name, [partial(self._observed, one)], one.unit, one.meaning)

    def _observed(self, instrument: Instrument, options: object) -> Iterable[Any]:
        from opentelemetry.metrics import Observation as Observed

        return [Observed(one.value, one.attributes) for one in self._latest() if one.instrument is instrument]

    def _latest(self) -> list[Observation]:
        """The numbers of the last survey; a scrape waits five seconds at most for a new one."""
        with self._lock:
            if (self._done.is_set() or not self.surveys) and clock() - self._began >= self._every:
                self._began, self.surveys = clock(), self.surveys + 1
                self._done.clear()
                threading.Thread(target=self._survey, name="survey", daemon=True).start()
        self._done.wait(max(0.0, self._began + _SURVEY_SECONDS - clock()))
        with self._lock:
            return [*self._found, Observation(instruments.SURVEY_AGE, clock() - self._ended, {})]

    def _survey(self) -> None:
        from leftfold.runtime.operations.survey import Survey

        found, began, is_whole = list[Observation](), clock(), False
        survey = Survey(*self._servers, most_states=_MOST_STATES)
        try:
            for app in self._apps:
                before = len(survey.problems)
                for row in (*survey.deciders(app), *survey.parts(app), *survey.views(app)):
                    found += observations(row)
                problems = sum(text not in survey.remarks for text in survey.problems[before:])
                found.append(Observation(instruments.PROBLEMS, problems, {"leftfold.app": app.name}))
            found.append(Observation(instruments.SURVEY_SECONDS, clock() - began, {}))
            is_whole = not survey.missing
        finally:
            with self._lock:
                # Where a server does not answer, its members have no numbers, and the age shows since when.
                self._found, self._ended = found, clock() if is_whole else self._ended
                self._done.set()
