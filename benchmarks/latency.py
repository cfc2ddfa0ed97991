"""How long one command takes from send to receipt, with the worker in a process of its own."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Event

from benchmarks.echo import WARM, ask, create, echo
from benchmarks.figure import Figure
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers
from services.baskets.app import app
from services.baskets.commands import AddItem, OpenBasket

__all__ = ["run"]

COUNT, PARTS = 1_000, 4


def run(servers: Servers) -> list[Figure]:
    """One client, one command at a time, and the same records by the bare client."""
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    create(settings)
    times, floor = [], []
    for part in range(PARTS):
        floor += _beside(echo, servers.kafka, lambda: ask(settings, COUNT // PARTS))
        times += _beside(_work, servers.kafka, lambda part=part: _round_trips(servers.kafka, part))  # type: ignore[misc]
    note = "peer: the bare client with the same records and transactions decides nothing"
    median, least = statistics.median(times) * 1000, statistics.median(floor) * 1000
    return [
        Figure("commands.round_trip", median, "ms", peer=least, smaller=True, note=note),
        Figure("commands.round_trip_p50", median, "ms", goal=3.5, smaller=True),
        Figure("commands.round_trip_p99", sorted(times)[int(len(times) * 0.99)] * 1000, "ms"),
        Figure(
            "commands.one_by_one", len(times) / sum(times), "commands/s", goal=280, note="one client waits for each"
        ),
    ]


def _beside(work: Callable[[str, Event], None], address: str, measure: Callable[[], list[float]]) -> list[float]:
    """Measures while `work` runs in a process of its own."""
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    process = context.Process(target=work, args=(address, done))
    process.start()
    try:
        return measure()
    finally:
        done.set()
        process.join()


def _work(address: str, done: Event) -> None:
    stop = threading.Event()
    worker = Worker(app, "baskets", KafkaClientSupplier(KafkaSettings(bootstrap_servers=address)), stop=stop)

    def stopped() -> None:
        done.wait()
        stop.set()

    threading.Thread(target=stopped, daemon=True).start()
    tuned_gc()
    worker.run()


def _round_trips(address: str, part: int) -> list[float]:
    at = datetime(2017, 1, 1, tzinfo=UTC)
    times = []
    with KafkaClient(app.name, KafkaSettings(bootstrap_servers=address)) as client:
        for basket in range((WARM + COUNT // PARTS) // 10):
            name = f"latency-{part}-{basket}"
            client.send(OpenBasket(basket_id=name, at=at, household_id="h", store_id="s"), timeout=60.0)
            for item in range(10):
                command = AddItem(basket_id=name, at=at, product_id=str(item), quantity=1, sales_value=Decimal("1.00"))
                began = time.perf_counter()
                client.send(command)
                times.append(time.perf_counter() - began)
    return times[WARM:]
