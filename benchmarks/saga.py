"""How long a checkout takes across all services: from the command at the register until the basket is paid."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.figure import Figure
from events.baskets import BasketPaid
from events.inventory import stock_id
from events.payments import Method
from leftfold import App
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.records import raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers
from leftfold.model import keys as names
from leftfold.ports.codec import MessageCodec, header
from services.baskets.app import app as baskets
from services.baskets.commands import AddItem, CheckOut, OpenBasket
from services.checkout.app import app as checkout
from services.inventory.app import app as inventory
from services.inventory.commands import Receive
from services.loyalty.app import app as loyalty
from services.payments.app import app as payments

__all__ = ["run"]

SAGAS, LINES, WARM = 300, 3, 30
SERVE_SECONDS, PAID_SECONDS = 120.0, 60.0
APPS = (baskets, inventory, loyalty, payments, checkout)


def run(servers: Servers, sagas: int = SAGAS) -> list[Figure]:
    """One household after the other, three products each; everything in a process of its own, on this machine."""
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    for app in APPS:
        ensure(app, kafka)
    with _services(kafka):
        times = sorted(_checkouts(kafka, sagas))
    note = f"{sagas} checkouts of {LINES} products, 4 deciders, a process and a router in a process each"
    return [
        Figure("processes.saga_p50", statistics.median(times) * 1000, "ms", note=note),
        Figure("processes.saga_p99", times[int(len(times) * 0.99)] * 1000, "ms"),
    ]


@contextmanager
def _services(kafka: KafkaSettings) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    works = [(app, name) for app in APPS for name in (*_deciders(app), *(p.name for p in app.processes))]
    ready = [context.Event() for _ in works]
    started = [
        context.Process(target=_work, args=(kafka.bootstrap_servers, APPS.index(app), name, stop, event))
        for (app, name), event in zip(works, ready, strict=True)
    ]
    started.append(context.Process(target=_route, args=(kafka.bootstrap_servers, stop)))
    for process in started:
        process.start()
    try:
        for event in ready:
            if not event.wait(SERVE_SECONDS):
                raise SystemExit(f"a service serves nothing in {SERVE_SECONDS:g} s")
        yield
    finally:
        stop.set()
        for process in started:
            process.join()


def _deciders(app: App) -> Iterator[str]:
    return (decider.name for decider in app.deciders)


def _until(stop: Event) -> threading.Event:
    """An event of this process's own that follows the one of all."""
    ours = threading.Event()

    def follow() -> None:
        stop.wait()
        ours.set()

    threading.Thread(target=follow, daemon=True).start()
    return ours


def _work(address: str, number: int, name: str, stop: Event, ready: Event) -> None:
    app = APPS[number]
    worker = Worker(app, name, KafkaClientSupplier(KafkaSettings(bootstrap_servers=address)), stop=_until(stop))
    tuned_gc()
    while len(worker.served) < app.partitions:
        worker.step()
    ready.set()
    worker.run()


def _route(address: str, stop: Event) -> None:
    tuned_gc()
    settings = KafkaSettings(bootstrap_servers=address)
    ProcessRouter(checkout, "checkout", settings, stop=_until(stop), report=lambda *_: None).run()


def _checkouts(kafka: KafkaSettings, sagas: int) -> Iterator[float]:
    now = datetime.now(UTC)
    paid = _Paid(kafka)
    with KafkaClient(baskets.name, kafka) as client:
        products = [f"p{number}" for number in range(LINES)]
        for product in products:
            client.send(Receive(stock_id=stock_id("s", product), at=now, quantity=10 * sagas), timeout=60)
        for number in range(sagas + WARM):
            basket = f"basket-{number}"
            client.send(OpenBasket(basket_id=basket, at=now, household_id="h", store_id="s"), timeout=60)
            for product in products:
                line = AddItem(basket_id=basket, at=now, product_id=product, quantity=1, sales_value=Decimal("1.50"))
                client.send(line, timeout=60)
            began = time.perf_counter()
            client.send(CheckOut(basket_id=basket, at=now, method=Method.CARD), timeout=60)
            paid.wait(basket)
            if number >= WARM:
                yield time.perf_counter() - began
    paid.close()


class _Paid:
    """Reads the events of baskets as they are committed, from now on."""

    def __init__(self, kafka: KafkaSettings) -> None:
        options = {"group.id": "register", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._consumer = Consumer({**kafka.librdkafka(), **options, "fetch.wait.max.ms": 100})
        self._type = MessageCodec([BasketPaid]).types[BasketPaid]
        topic = names.events("baskets")
        places = [TopicPartition(topic, partition) for partition in range(baskets.partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, 20)[1]
        self._consumer.assign(places)

    def wait(self, basket: str) -> None:
        """Waits until this basket is paid."""
        deadline = time.monotonic() + PAID_SECONDS
        while time.monotonic() < deadline:
            message: Any = self._consumer.poll(0.5)
            if message is None or message.error():
                continue
            record = raw(message)
            if record.key == basket.encode() and header(record.headers, "ce_type") == self._type:
                return
        raise SystemExit(f"{basket} was not paid in {PAID_SECONDS:g} s")

    def close(self) -> None:
        """Lets go of the connection."""
        self._consumer.close()
