"""What telemetry costs a worker, in turns without an SDK and with a trace of every command, and what a survey calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.figure import Figure
from benchmarks.workers import decided, feed
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.ports.instruments import BATCH_SIZE, TAKE, member, recorded_by
from services.baskets.app import app
from tests.cli.health.survey_calls import surveyed, write_records
from tests.servers import Addresses, emptied

__all__ = ["survey", "telemetry"]

MANY, BATCH, ROUNDS, CALLS = 100_000, 16_000, 4, 20_000
TRACED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CALLS_OF_A_BATCH = 20
"""How many values a worker records for a batch, rounded up; it also makes one span, and one each for 16 commands."""


@contextmanager
def _recording() -> Iterator[None]:
    """Metrics are kept in memory; spans are made and dropped, since they are exported on a thread of their own."""
    with recorded_by(TracerProvider(shutdown_on_exit=False), MeterProvider([InMemoryMetricReader()])):
        yield


def telemetry(servers: Servers, many: int = MANY) -> list[Figure]:
    """All commands are in traces that their senders record; the figures are from the medians of the rounds."""
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    tuned_gc()
    fed = 0

    def rate(recording: AbstractContextManager[None]) -> float:
        nonlocal fed
        feed(settings, many, skip=fed, traceparent=TRACED)
        fed += many
        with recording:
            return decided(settings, many)

    rate(nullcontext())
    without, within = [], []
    for _ in range(ROUNDS):
        without.append(rate(nullcontext()))
        within.append(rate(_recording()))
    percent = (median(without) / median(within) - 1) * 100
    note = f"{median(without):,.0f} commands/s without an SDK, {median(within):,.0f} with one, all of them traced"
    return [
        Figure("telemetry.on", percent, "%", goal=6, smaller=True, note=note),
        *calls(median(without)),
    ]


def survey(servers: Servers, many: int = 12) -> list[Figure]:
    """The calls of one survey, which status, doctor, the console and metrics share: of many partitions against one."""
    found, addresses = [], Addresses(servers.kafka, servers.redis)
    for partitions in (many, 1):
        write_records(emptied(addresses), partitions)
        calls, _ = surveyed(addresses, partitions)
        found.append({"kafka": calls.total() - calls["redis"], "redis": calls["redis"]})
    note = f"{many} partitions against 1"
    return [
        Figure(f"survey.calls.{server}", found[0][server], "calls", found[1][server], goal=1, smaller=True, note=note)
        for server in ("kafka", "redis")
    ]


def calls(per_second: float = 30_000.0) -> list[Figure]:
    """The cost of single calls, without and with an SDK, and their share of a full batch of a worker.

    Args:
        per_second: how many commands a worker decides.
    """
    about = member("decider", "baskets")
    found: dict[str, dict[str, float]] = {}
    for name, recording in (("off", nullcontext()), ("on", _recording())):
        with recording:
            record = _microseconds(lambda: BATCH_SIZE.record(3, about))
            span = _microseconds(_span)
        found[name] = {"record": record, "span": span}
    batch = BATCH / per_second * 1e6
    share = {
        name: (CALLS_OF_A_BATCH * cost["record"] + 17 * cost["span"]) / batch * 100 for name, cost in found.items()
    }
    return [
        Figure("telemetry.off.record", found["off"]["record"], "µs", note="one value, no SDK"),
        Figure("telemetry.off.batch", share["off"], "%", goal=2, smaller=True, note="of a batch of 16,000, no SDK"),
        Figure("telemetry.on.record", found["on"]["record"], "µs", note="one value"),
        Figure("telemetry.on.span", found["on"]["span"], "µs", note="one span with its parent"),
        Figure("telemetry.on.batch", share["on"], "%", goal=6, smaller=True, note="of a batch of 16,000"),
    ]


def _span() -> None:
    with TAKE.span("baskets.commands", {"leftfold.outcome": "accepted"}, parent=TRACED):
        pass


def _microseconds(call: Callable[[], None], rounds: int = 5) -> float:
    """The cost of a call, from the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(CALLS // rounds):
            call()
        best = min(best, (time.perf_counter() - began) / (CALLS // rounds) * 1e6)
    return best
