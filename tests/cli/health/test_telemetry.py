"""What `leftfold run --metrics` and `serve --metrics` show on real servers, and what the survey behind it costs."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from leftfold.ports.instruments import INSTRUMENTS
from leftfold.runtime.telemetry_export import ObservedApps
from tests.cli.shell import ROOT, Shell
from tests.domains.observed import app_with
from tests.free_ports import free_port
from tests.listening import Request, listening
from tests.servers import Addresses
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

APP = "tests.domains.observed:app"
MONITORING = ROOT / "docs" / "monitoring"
NAME = re.compile(r"\b(?:leftfold|messaging|http)_\w+")
SECONDS = 240.0
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Scraped:
    """The samples of a scrape."""

    def __init__(self, *texts: str) -> None:
        self.samples = [
            sample for text in texts for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        self.names = {sample.name for sample in self.samples}
        self.labels = {label for sample in self.samples for label in sample.labels}

    def of(self, metric: str, **labels: str) -> list[float]:
        wanted = {f"leftfold_{label}": value for label, value in labels.items()}
        return [one.value for one in self.samples if one.name == metric and wanted.items() <= one.labels.items()]


class Collector:
    """Takes spans over HTTP, as a collector of OpenTelemetry does."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, bytes, bytes, bytes]] = []
        """Name, trace, own id and parent."""

    def answer(self, request: Request) -> tuple[int, bytes]:
        if request.path == "/v1/traces":
            is_compressed = request.headers.get("Content-Encoding") == "gzip"
            self.take(gzip.decompress(request.body) if is_compressed else request.body)
        return 200, b""

    def take(self, body: bytes) -> None:
        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.spans += [
                (span.name, span.trace_id, span.span_id, span.parent_span_id)
                for scope in of.scope_spans
                for span in scope.spans
            ]

    def chain(self, trace: bytes, parent: bytes, names: Sequence[str]) -> bool:
        """Whether a trace has spans of these names, each below the one before."""
        if not names:
            return True
        found = [own for name, of, own, above in self.spans if (name, of, above) == (names[0], trace, parent)]
        return any(self.chain(trace, own, names[1:]) for own in found)

    def tree(self, trace: bytes) -> list[tuple[str, str, str]]:
        """The spans of a trace: name, own id and parent."""
        return [(name, own.hex(), above.hex()) for name, of, own, above in self.spans if of == trace]


class Running:
    """A run and a gateway with metrics, which send their spans to a collector."""

    def __init__(self, shell: Shell, collector: Collector, address: str) -> None:
        self.collector = collector
        shell._environment |= {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{address}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        self.shell, self.address = shell, f"127.0.0.1:{free_port()}"
        self.gateway = f"127.0.0.1:{free_port()}"
        words = ["run", "--app", APP, "--metrics", self.address, "--json-logs"]
        self.processes: list[subprocess.Popen[bytes]] = [shell.start(words)]
        port = self.gateway.rpartition(":")[2]
        self.processes.append(shell.beside("gateway").start(["serve", "--app", APP, "--port", port, "--metrics"]))

    def texts(self) -> list[str]:
        return [httpx.get(f"http://{one}/metrics", timeout=SECONDS).text for one in (self.address, self.gateway)]

    def scraped(self) -> Scraped:
        return Scraped(*self.texts())

    def end(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)


@pytest.fixture(scope="module")
def running(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    collector, shell = Collector(), Shell(tmp_path_factory.mktemp("run")).at(empty_servers)
    with listening(collector.answer) as address:
        found = Running(shell, collector, address)
        try:
            _place(found, "o-1")
            yield found
        finally:
            found.end()


def _place(running: Running, order: str) -> None:
    """Places an order that is dropped at once, since its timer was due an hour ago, and waits for its row."""
    at = (datetime.now(UTC) - timedelta(hours=2)).isoformat()

    def is_up() -> bool:
        try:
            return httpx.get(f"http://{running.gateway}/health/ready", timeout=SECONDS).status_code == 200
        except httpx.HTTPError:
            return False

    wait_until(is_up, running.shell.said, SECONDS)
    body = {"order": order, "product": "p", "at": at}
    url = f"http://{running.gateway}/commands/orders/Place?timeout=60"
    headers = {"traceparent": CALLER, "Idempotency-Key": f"place-{order}"}

    def is_placed() -> bool:
        answer = httpx.post(url, json=body, timeout=SECONDS, headers=headers)
        assert answer.status_code in (200, 202, 503), answer.text
        return answer.status_code == 200

    wait_until(is_placed, running.shell.said, SECONDS)

    def row() -> Any:
        return httpx.get(f"http://{running.gateway}/views/order_status/{order}", timeout=SECONDS).json()

    wait_until(lambda: row().get("state") == "dropped", lambda: f"{row()} {running.shell.said()}", SECONDS)


def _missing(running: Running, wanted: set[str]) -> set[str]:
    found = running.scraped()
    return wanted - found.names - found.labels


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yml"])
def test_the_dashboard_and_the_alerts_ask_for_metrics_that_are_there(running: Running, file: str) -> None:
    text = (MONITORING / file).read_text("utf-8")
    expressions = _expressions(json.loads(text) if file.endswith("json") else yaml.safe_load(text))
    wanted = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(wanted) > 10
    wait_until(lambda: not _missing(running, wanted), lambda: f"{_missing(running, wanted)}", SECONDS)


@pytest.mark.parametrize(("file", "least"), [("dashboard.json", 10), ("alerts.yml", 6)])
def test_the_dashboard_and_the_alerts_count_the_survey_once_however_many_runs_there_are(file: str, least: int) -> None:
    """Each run shows the same survey: sums would count a dead letter, and alerts fire, as often as there are runs."""
    named = "|".join(one.name.replace(".", "_") for one in INSTRUMENTS if one.kind == "observed")
    found = list(_expressions(yaml.safe_load((MONITORING / file).read_text("utf-8"))))
    asked = [one for one in found if re.search(rf"\b(?:{named})(?:_seconds|_bytes)?\b", one)]
    assert len(asked) > least
    assert not [one for one in asked if not re.search(r"\bmax (?:by \([a-z_, ]+\) )?\(leftfold_", one)]


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(found := value.get("expr"), str):
            yield found
        for one in value.values():
            yield from _expressions(one)
    elif isinstance(value, list):
        for one in value:
            yield from _expressions(one)


def test_every_instrument_is_in_the_page_and_in_a_scrape_or_belongs_to_clients(running: Running) -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    assert not [one.name for one in INSTRUMENTS if f"`{one.name}`" not in page]

    def absent() -> list[str]:
        there = " ".join(running.scraped().names)
        return [one.name for one in INSTRUMENTS if one.name.replace(".", "_") not in there]

    # What only clients of many commands count is in no scrape.
    wait_until(lambda: absent() == ["messaging.client.sent.messages"], lambda: f"{absent()}", SECONDS)


def test_numbers_of_every_part_and_of_the_survey_are_in_one_scrape(running: Running) -> None:
    parts = ("orders", "stock", "payments", "checkout", "checkout.router", "greetings", "projector")
    members = {"decider": "orders", "process": "checkout", "router": "checkout", "view": "order_status"}

    def wrong() -> list[str]:
        """What one scrape lacks: a part may answer late, and the survey be of the moment before."""
        found = running.scraped()
        accepted = found.of("leftfold_commands_total", kind="decider", name="orders", outcome="accepted")
        shown = {
            "greetings run": found.of("leftfold_running", kind="reaction", name="greetings") == [1.0],
            "accepted commands": sum(accepted) >= 2.0,
            "rows": found.of("leftfold_view_rows", name="order_status") == [1.0],
            "timers": sum(found.of("leftfold_timer_lateness_seconds_count", name="checkout")) >= 1.0,
        }
        shown |= {f"{part} is up": found.of("leftfold_part_up", part=part) == [1.0] for part in parts}
        for kind, name in members.items():
            shown[f"{kind} {name} runs"] = found.of("leftfold_running", kind=kind, name=name) == [1.0]
            shown[f"{kind} {name} has a lag"] = bool(found.of("leftfold_lag", kind=kind, name=name))
        return [what for what, is_shown in shown.items() if not is_shown]

    wait_until(lambda: not wrong(), lambda: f"{wrong()}", SECONDS)


@pytest.mark.parametrize(
    "chain", [("react checkout.commands", "decide stock.commands"), ("project orders.events",), ("act greetings",)]
)
def test_one_trace_leads_through_every_process_of_the_run(running: Running, chain: tuple[str, ...]) -> None:
    _, trace, parent, _ = CALLER.split("-")
    names = ("POST /commands/orders/Place", "send orders.commands", "decide orders.commands", *chain)
    wait_until(
        lambda: running.collector.chain(bytes.fromhex(trace), bytes.fromhex(parent), names),
        lambda: f"{running.collector.tree(bytes.fromhex(trace))}",
        SECONDS,
    )


def test_top_prints_one_snapshot_per_line_and_ends_on_ctrl_c(running: Running) -> None:
    rows: dict[tuple[str, str], Any] = {}

    def is_measured() -> bool:
        (snapshot,) = running.shell("top", "--app", APP, "--once", "--json", "--metrics", running.address).ok().rows()
        rows.update({(row["kind"], row["name"]): row for row in snapshot["rows"]})
        return rows["decider", "orders"]["p99"] is not None

    wait_until(is_measured, "the parts to answer a scrape in time", SECONDS)
    assert rows["decider", "orders"]["p99"] > 0
    assert rows["router", "checkout"]["running"] == 1
    assert rows["reaction", "greetings"]["parked"] == 0
    assert rows["view", "order_status"]["lag"] is not None
    shell = running.shell.beside("top")
    process = shell.start(["top", "--app", APP, "--json", "--every", "100ms"])
    shell.wait_until(process, lambda said: said.count("\n") >= 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130
    later = [json.loads(line) for line in shell.said().splitlines()]
    assert all(row["rate"] is not None for row in later[-1]["rows"] if row["done"] is not None)


def test_the_survey_is_taken_once_for_all_scrapes_of_an_interval(running: Running, empty_servers: Addresses) -> None:
    observed = ObservedApps([app_with(2)], empty_servers.kafka, empty_servers.redis, every=3600.0)
    asked: list[Callable[..., Any]] = []

    class Meter:
        def create_observable_gauge(self, name: str, callbacks: list[Callable[..., Any]], *about: str) -> None:
            asked.extend(callbacks)

    def numbers() -> int:
        return sum(len(list(callback(None))) for callback in asked)

    observed.register(Meter())
    wait_until(lambda: numbers() > len(asked), "the survey, for which one scrape waits a few seconds only", SECONDS)
    assert [numbers() > len(asked) for _ in range(3)] == [True] * 3
    assert observed.surveys == 1
