"""Events through a router and a process, against a bare Faust agent with a Table; and how fast states come back.

Both add up cents per key, from the same topic. The clock runs from the first event to the last, without any start.

- **Ours** has two processes, as `leftfold run` starts them: a router that writes each event, keyed anew, to the topic
  of the process, and a worker that takes it in a transaction: state, origins and offsets, so that each counts once.
  The clock ends when the last transaction is committed.
- **Faust** has one: an agent that adds to a Table in memory, with its changelog topic. It keys nothing anew, reads
  uncommitted records and counts at least once. The clock ends when it has seen the last event.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks.figure import Figure
from benchmarks.peer import NotInstalled, run_peer
from benchmarks.purses import TOPIC, Spent, spendings, write_spendings
from leftfold import App, Command, Process, Timer
from leftfold.engine.processing.process_instance import InstanceCodec
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord

__all__ = ["run"]

EVENTS, FEW, STATES, PARTITIONS = 200_000, 40_000, 100_000, 12
FEW_TOPIC = "purses.few"
LIMIT_SECONDS = 300
FAR = datetime(2100, 1, 1, tzinfo=UTC)


class Warn(Command, category="purses", key="purse"):
    """What the timers would send; they never come to that."""

    purse: str


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
app = App("bench", partitions=PARTITIONS, processes=[sums, visits])


def run(servers: Servers, events: int = EVENTS, few: int = FEW, states: int = STATES) -> list[Figure]:
    """The better of two runs of each."""
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    write_spendings(kafka, events)
    few_keys = write_spendings(kafka, few, FEW_TOPIC)
    ensure(app, kafka)
    ours = _taken(kafka, "sums", events)
    _check_sums(kafka, events)
    figures = [_against_faust(servers, ours, few, few_keys)]
    _taken(kafka, "visits", events)
    figures.append(_recovered(kafka, states))
    return figures


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
    context = multiprocessing.get_context("spawn")
    stop, serves, taken = context.Event(), context.Event(), context.Value("l", 0)
    worker = context.Process(target=_work, args=(kafka.bootstrap_servers, process, stop, serves, taken))
    router = context.Process(target=_route, args=(kafka.bootstrap_servers, process, stop))
    worker.start()
    try:
        if not serves.wait(LIMIT_SECONDS):
            raise SystemExit(f"the worker of {process} serves nothing in {LIMIT_SECONDS} s")
        router.start()
        yield lambda: int(taken.value)
    finally:
        stop.set()
        for one in (worker, router):
            if one.pid is not None:
                one.join()


def _work(address: str, process: str, stop: Event, serves: Event, taken: Any) -> None:
    worker = _serving(KafkaSettings(bootstrap_servers=address), process)
    serves.set()
    while not stop.is_set():
        worker.step()
        taken.value = worker.counts["taken"]
    worker.close()


def _serving(kafka: KafkaSettings, process: str) -> Worker:
    tuned_gc()
    worker = Worker(app, process, KafkaClientSupplier(kafka), stop=threading.Event())
    while len(worker.served) < PARTITIONS:
        worker.step()
    return worker


def _route(address: str, process: str, done: Event) -> None:
    stop = threading.Event()

    def stopped() -> None:
        done.wait()
        stop.set()

    threading.Thread(target=stopped, daemon=True).start()
    tuned_gc()
    settings = KafkaSettings(bootstrap_servers=address)
    ProcessRouter(app, process, settings, stop=stop, report=lambda *_: None).run()


def _against_faust(servers: Servers, ours: float, events: int, keys: int) -> Figure:
    note = "a router and a worker, exactly once; the peer: an agent with a Table, at least once"
    try:
        runs = [run_peer("faust", servers.kafka, FEW_TOPIC, events, attempt) for attempt in range(2)]
    except NotInstalled as error:
        return Figure("processes.events", ours, "events/s", note=f"not compared, it cannot be installed here: {error}")
    for one in runs:
        if (one.events, one.keys) != (events, keys):
            raise SystemExit(f"faust added up {one.events:,} events of {one.keys:,} keys, not {events:,} of {keys:,}")
    return Figure("processes.events", ours, "events/s", peer=max(one.rate for one in runs), goal=1.5, note=note)


def _recovered(kafka: KafkaSettings, wanted: int) -> Figure:
    """How long a worker takes, from its start, until every partition is served again."""
    count = len({record.key for record in _records(kafka, names.state("visits", 1)) if record.key != b"@"})
    if count < wanted:
        raise SystemExit(f"{count:,} states are there, and {wanted:,} were wanted")
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        worker = _serving(kafka, "visits")
        seconds.append(time.perf_counter() - began)
        worker.close()
    return Figure(
        "processes.recovery", min(seconds), "s", note=f"{count:,} states with a timer each, joining the group included"
    )


def _check_sums(kafka: KafkaSettings, events: int) -> None:
    """Whether the states add up to what was written."""
    codec = InstanceCodec(sums.state, 0)
    states = {r.key: r.value or b"" for r in _records(kafka, names.state("sums", 1)) if r.key != b"@"}
    found = sum(codec.decode(value, 0.0).state for value in states.values())
    wanted = sum(event.cents for _, event in spendings(events))
    if found != wanted:
        raise SystemExit(f"the states add up to {found:,}, not {wanted:,}, from {TOPIC}")


def _records(kafka: KafkaSettings, topic: str) -> Iterator[RawRecord]:
    log = KafkaLogReader(kafka)
    try:
        ends = log.ends([topic])
        log.seek(Position({topic: dict.fromkeys(range(PARTITIONS), 0)}))
        while not log.position().covers(ends):
            yield from log.poll(5000, 0.1)
    finally:
        log.close()
