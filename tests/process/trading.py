"""The trade at work: a worker for each decider and process and a router, on threads of the test's own process.

And what became of it: every step that was taken, and whether any was taken twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from leftfold import App
from leftfold.engine.processing.process_wire import ACK, DUE, NACK
from leftfold.engine.processing.stream_state import MARK
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.messages import Event
from leftfold.model.position import Position
from leftfold.ports.codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import app, checkout_with
from tests.waiting import wait_until

__all__ = ["PARTS", "Trading", "committed", "happened", "inputs", "raised", "routed", "sent", "states", "twice"]

PARTS = ("orders", "stock", "payments", "checkout", "router")


class Trading:
    """Works while the block runs, and raises what failed meanwhile.

    Args:
        parts: which of its parts work here; a test looks after the others.
    """

    def __init__(self, settings: KafkaSettings, app: App = app, parts: Sequence[str] = PARTS) -> None:
        self.settings, self._app, self._stop = settings, app, threading.Event()
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.failures: list[BaseException] = []
        self.workers = {
            name: Worker(app, name, KafkaClientSupplier(settings), stop=self._stop, report=self._report)
            for name in parts
            if name != "router"
        }
        works: list[Callable[[], None]] = [worker.run for worker in self.workers.values()]
        self._has_router = "router" in parts
        works += [self._route] if self._has_router else []
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in works]
        self.client = KafkaClient(app.name, settings)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(
            lambda: not self.failures and self.serves_all(),
            lambda: f"every partition to be served: {self.failures} {self.reports}",
        )
        return self

    def serves_all(self) -> bool:
        """Whether every partition is served here, and the router takes events.

        One that is stopped in the middle of its start leaves connections open, of which Python complains later.
        """
        every = frozenset(range(self._app.partitions))
        is_routing = not self._has_router or any(what == "routing" for what, _ in self.reports)
        return is_routing and all(worker.served == every for worker in self.workers.values())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        self._stop.set()
        for thread in self._threads:
            thread.join(240.0)
            assert not thread.is_alive(), "something does not end"
        if kind is None and self.failures:
            raise self.failures[0]

    def events(self, category: str) -> list[Event]:
        """Everything committed in a category, partition by partition."""
        codec: MessageCodec[Event] = MessageCodec(self._app.decider(category).events)
        found = (codec.wanted(dict(r.headers)["ce_type"], r.value) for r in self.records(names.events(category)))
        return [event for event in found if event is not None]

    def records(self, topic: str) -> list[RawRecord]:
        """Everything committed in a topic."""
        return committed(self.settings, topic)

    def await_event(self, category: str, event: Event, seconds: float = 240.0) -> None:
        """Waits until this event is written."""
        wait_until(
            lambda: not self.failures and event in self.events(category),
            lambda: f"{event!r}: {self.failures} {self.events(category)} {self.reports[-5:]}",
            seconds,
        )

    def _report(self, what: str, details: Mapping[str, Any]) -> None:
        self.reports.append((what, details))

    def _route(self) -> None:
        (process,) = self._app.processes
        ProcessRouter(self._app, process.name, self.settings, stop=self._stop, report=self._report).run()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, the test's thread raises it
            self.failures.append(error)


def committed(settings: KafkaSettings, topic: str) -> list[RawRecord]:
    """Everything committed in a topic, partition by partition."""
    log = KafkaLogReader(settings)
    try:
        count = log.partitions(topic)
        ends = log.ends([topic])
        log.seek(Position({topic: dict.fromkeys(range(count), 0)}))
        found: list[RawRecord] = []
        while not log.position().covers(ends):
            found += log.poll(500, 0.1)
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        log.close()


def happened(settings: KafkaSettings, app: App = app) -> Counter[object]:
    """How often each event was written, in all services."""
    found: Counter[object] = Counter()
    for decider in app.deciders:
        codec: MessageCodec[Event] = MessageCodec(decider.events)
        for record in committed(settings, names.events(decider.name)):
            found[codec.wanted(header(record.headers, "ce_type"), record.value)] += 1
    return found


def sent(settings: KafkaSettings, app: App = app) -> Counter[bytes]:
    """How often each command of the process and each answer to one was written, by id."""
    topics = [names.commands(decider.name) for decider in app.deciders]
    records = [record for topic in topics for record in committed(settings, topic)]
    asked = [record for record in records if header(record.headers, "reply_key")]
    answers = [r for r in inputs(settings) if header(r.headers, "ce_type") in (ACK, NACK)]
    return Counter(header(record.headers, "ce_id") for record in [*asked, *answers])


def inputs(settings: KafkaSettings) -> list[RawRecord]:
    """Everything that the process was given, but barriers."""
    return [record for record in committed(settings, "checkout.commands") if record.key != MARK]


def routed(settings: KafkaSettings) -> Counter[bytes]:
    """How often each event was routed, by the id of the input."""
    ours = (ACK, NACK, DUE)
    found = [record for record in inputs(settings) if header(record.headers, "ce_type") not in ours]
    return Counter(header(record.headers, "ce_id") for record in found)


def twice(counts: Counter[bytes] | Counter[object]) -> dict[object, int]:
    """What there is more than once."""
    return {what: count for what, count in counts.items() if count > 1}


def states(settings: KafkaSettings, app: App = app) -> dict[str, bytes]:
    """The states that workers have written, by key."""
    records = committed(settings, names.state("checkout", app.process("checkout").version))
    return {(r.key or b"").decode(): r.value or b"" for r in records if r.key != MARK}


def raised(version: int = 2) -> App:
    """The same App, in which the process has another version."""
    process = checkout_with(version=version)
    return App("trade", partitions=app.partitions, deciders=app.deciders, processes=[process])
