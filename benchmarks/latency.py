"""How long one command takes from send to receipt, with the worker in a process of its own."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Event

from benchmarks.figure import Figure
from leftfold.garbage import tuned_gc
from leftfold.kafka.client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.kafka.worker import Worker
from leftfold.kafka.workshop import Workshop
from leftfold.local import Servers
from services.baskets.app import app
from services.baskets.commands import AddItem, OpenBasket

__all__ = ["run"]

COUNT = 1_000


def run(servers: Servers) -> list[Figure]:
    """One client, one command at a time."""
    ensure(app, KafkaSettings(bootstrap_servers=servers.kafka))
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    process = context.Process(target=_work, args=(servers.kafka, done))
    process.start()
    try:
        times = sorted(_round_trips(servers.kafka))
    finally:
        done.set()
        process.join()
    return [
        Figure("commands.round_trip_p50", statistics.median(times) * 1000, "ms", goal=5, smaller=True),
        Figure("commands.round_trip_p99", times[int(len(times) * 0.99)] * 1000, "ms"),
    ]


def _work(address: str, done: Event) -> None:
    stop = threading.Event()
    worker = Worker(app, "baskets", Workshop(KafkaSettings(bootstrap_servers=address)), stop=stop)

    def stopped() -> None:
        done.wait()
        stop.set()

    threading.Thread(target=stopped, daemon=True).start()
    tuned_gc()
    worker.run()


def _round_trips(address: str) -> list[float]:
    at = datetime(2017, 1, 1, tzinfo=UTC)
    times = []
    with KafkaClient(app.name, KafkaSettings(bootstrap_servers=address)) as client:
        for basket in range(COUNT // 10):
            name = f"latency-{basket}"
            client.send(OpenBasket(basket_id=name, at=at, household_id="h", store_id="s"), timeout=60.0)
            for item in range(10):
                command = AddItem(basket_id=name, at=at, product_id=str(item), quantity=1, sales_value=Decimal("1.00"))
                began = time.perf_counter()
                client.send(command)
                times.append(time.perf_counter() - began)
    return times
