"""Processes: events through a router and a worker against a Faust agent, recovery, and a checkout across services."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Event
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.figure import Figure
from benchmarks.logs import PARTITIONS, PURSES, Spent, spendings, write_spendings
from benchmarks.peer import against
from benchmarks.workers import CONTEXT, as_thread_event, beside, serving
from events.baskets import BasketPaid
from events.inventory import stock_id
from events.payments import Method
from leftfold import App, Command, Process, Timer
from leftfold.engine.processing.process_instance import InstanceCodec
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.records import raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.message_codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from services.baskets.app import app as baskets
from services.baskets.commands import AddItem, CheckOut, OpenBasket
from services.checkout.app import app as checkout
from services.inventory.app import app as inventory
from services.inventory.commands import Receive
from services.loyalty.app import app as loyalty
from services.payments.app import app as payments

__all__ = ["processes", "saga"]

EVENTS, FEW, STATES = 200_000, 40_000, 100_000
FEW_TOPIC = "purses.few"
LIMIT_SECONDS = 300


class Warn(Command, category="purses", key="purse"):
    """What the timers would send; they never come to that."""

    purse: str


FAR = datetime(2100, 1, 1, tzinfo=UTC)
sums = Process(
    "sums",
    inputs=Spent,
    sends=Warn,
    state=int,
    initial_state=0,
    correlate=lambda event: event.purse,
    react=lambda event, state: [],
    evolve=lambda state, event: state + event.cents,
)
visits = Process(
    "visits",
    inputs=Spent,
    sends=Warn,
    state=int,
    initial_state=0,
    correlate=lambda event: f"{event.purse}/{event.shop}",
    react=lambda event, state: [Timer(name="late", at=FAR, command=Warn(purse=event.purse))],
    evolve=lambda state, event: state + event.cents,
)
bench = App("bench", partitions=PARTITIONS, processes=[sums, visits])
APPS = (baskets, inventory, loyalty, payments, checkout, bench)


def _work(stop: Event, address: str, number: int, name: str, serves: Event, taken: Any = None) -> None:
    """A worker of an App of `APPS`."""
    worker = serving(KafkaSettings(bootstrap_servers=address), APPS[number], name, as_thread_event(stop))
    serves.set()
    if taken is None:
        worker.run()
        return
    while not stop.is_set():
        worker.step()
        taken.value = worker.counts["taken"]
    worker.close()


def _route(stop: Event, address: str, number: int, process: str) -> None:
    tuned_gc()
    settings = KafkaSettings(bootstrap_servers=address)
    ProcessRouter(APPS[number], process, settings, stop=as_thread_event(stop), report=lambda *_: None).run()


def _wait_served(events: list[Event]) -> None:
    for event in events:
        if not event.wait(LIMIT_SECONDS):
            raise SystemExit(f"a worker serves nothing in {LIMIT_SECONDS} s")


def processes(servers: Servers, events: int = EVENTS, few: int = FEW, states: int = STATES) -> list[Figure]:
    """Both add up cents per key, from the same topic; the clock runs from the first event to the last.

    - **Ours** has two processes, as `leftfold run` starts them: a router that writes each event, under the key of the
      process, to the topic of the process, and a worker that takes it in a transaction: state, origins and offsets, so
      that each counts once. The clock ends when the last transaction is committed.
    - **Faust** has one: an agent that adds to a Table in memory, with its changelog topic. It keeps the key, reads
      uncommitted records and counts at least once. The clock ends when it has seen the last event. The better of two.
    """
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    write_spendings(kafka, events)
    keys = write_spendings(kafka, few, FEW_TOPIC)
    ensure(bench, kafka)
    rate = _taken(kafka, "sums", events)
    _check_sums(kafka, events)
    note = "a router and a worker, exactly once; the peer: an agent with a Table, at least once"
    ours = Figure("processes.events", rate, "events/s", goal=1.5, note=note)
    figures = [against("faust", servers.kafka, FEW_TOPIC, few, keys, ours)]
    _taken(kafka, "visits", events)
    return [*figures, _recovered(kafka, states)]


def _taken(kafka: KafkaSettings, process: str, events: int) -> float:
    """Events a second, from the first input that is written until the last is taken."""
    with _at_work(kafka, process) as taken:
        deadline = time.monotonic() + LIMIT_SECONDS
        while taken() < events:
            if time.monotonic() > deadline:
                raise SystemExit(f"{process} has taken {taken():,} of {events:,} inputs in {LIMIT_SECONDS} s")
            time.sleep(0.005)
        ended = time.time()
    began = min(record.time for record in _records(kafka, names.commands(process)) if record.key != b"@") / 1000
    return events / (ended - began)


@contextmanager
def _at_work(kafka: KafkaSettings, process: str) -> Iterator[Callable[[], int]]:
    serves, taken, place = CONTEXT.Event(), CONTEXT.Value("l", 0), (kafka.bootstrap_servers, APPS.index(bench), process)
    with beside((_work, *place, serves, taken)):
        _wait_served([serves])
        with beside((_route, *place)):
            yield lambda: int(taken.value)


def _recovered(kafka: KafkaSettings, wanted: int) -> Figure:
    """How long a worker takes, from its start, until every partition is served again."""
    count = len({record.key for record in _records(kafka, names.state("visits", 1)) if record.key != b"@"})
    if count < wanted:
        raise SystemExit(f"{count:,} states are there, and {wanted:,} were wanted")
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        worker = serving(kafka, bench, "visits")
        seconds.append(time.perf_counter() - began)
        worker.close()
    note = f"{count:,} states with a timer each, joining the group included"
    return Figure("processes.recovery", min(seconds), "s", note=note)


def _check_sums(kafka: KafkaSettings, events: int) -> None:
    """Whether the states add up to what was written."""
    codec = InstanceCodec(sums.state, 0)
    states = {r.key: r.value or b"" for r in _records(kafka, names.state("sums", 1)) if r.key != b"@"}
    found = sum(codec.decode(value, 0.0).state for value in states.values())
    wanted = sum(event.cents for _, event in spendings(events))
    if found != wanted:
        raise SystemExit(f"the states add up to {found:,}, not {wanted:,}, from {PURSES}")


def _records(kafka: KafkaSettings, topic: str) -> Iterator[RawRecord]:
    with closing(KafkaLogReader(kafka)) as log:
        ends = log.ends([topic])
        log.seek(Position({topic: dict.fromkeys(range(PARTITIONS), 0)}))
        while not log.position().covers(ends):
            yield from log.poll(5000, 0.1)


SAGAS, LINES, WARM, PAID_SECONDS = 300, 3, 30, 60.0


def saga(servers: Servers, sagas: int = SAGAS) -> list[Figure]:
    """How long a checkout takes across all services: from the command at the register until the basket is paid.

    One household after the other, three products each; everything in a process of its own, on this machine.
    """
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    address, works = servers.kafka, list[tuple[Any, ...]]()
    for number, app in enumerate(APPS[:-1]):
        ensure(app, kafka)
        for member in (*(d.name for d in app.deciders), *(p.name for p in app.processes)):
            works.append((_work, address, number, member, CONTEXT.Event()))
    with beside(*works, (_route, address, APPS.index(checkout), "checkout")):
        _wait_served([serves for *_, serves in works])
        times = sorted(_checkouts(kafka, sagas))
    note = f"{sagas} checkouts of {LINES} products, 4 deciders, a process and a router in a process each"
    return [
        Figure("processes.saga_p50", statistics.median(times) * 1000, "ms", note=note),
        Figure("processes.saga_p99", times[int(len(times) * 0.99)] * 1000, "ms"),
    ]


def _checkouts(kafka: KafkaSettings, sagas: int) -> Iterator[float]:
    now, products = datetime.now(UTC), [f"p{number}" for number in range(LINES)]
    with closing(_Paid(kafka)) as paid, KafkaClient(baskets.name, kafka) as client:
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
        """Closes the connection."""
        self._consumer.close()
