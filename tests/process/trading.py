"""The trade at work: a worker for each decider and process and a router, on threads of the test's own process.

And what became of it: every step that was taken, and whether any was taken twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial

from leftfold import App
from leftfold.engine.processing.process_wire import ACK, DUE, NACK
from leftfold.engine.processing.stream_state import MARK
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.messages import Event
from leftfold.ports.message_codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import app, checkout_with
from tests.reports import Reports
from tests.settled import committed
from tests.threads import Background, bearing
from tests.waiting import wait_until

__all__ = ["PARTS", "Trading", "happened", "inputs", "raised", "routed", "sent", "states", "twice"]

PARTS = ("orders", "stock", "payments", "checkout", "router")


class Trading(Background):
    """Works while the block runs, which begins once every partition is served, and the router takes events.

    Args:
        parts: which of its parts work here; a test looks after the others.
    """

    def __init__(self, settings: KafkaSettings, app: App = app, parts: Sequence[str] = PARTS) -> None:
        super().__init__(*(partial(self._work, part) for part in parts))
        self.settings, self._app, self._has_router, self.reports = settings, app, "router" in parts, Reports()
        self.workers = {
            name: Worker(app, name, bearing(KafkaClientSupplier(settings)), stop=self.stop, report=self.reports)
            for name in parts
            if name != "router"
        }
        self.client = KafkaClient(app.name, settings)

    def wait_begun(self) -> None:
        wait_until(lambda: self.going and self.serves_all(), lambda: f"every partition to be served: {self.reports}")

    def serves_all(self) -> bool:
        """Whether every partition is served here, and the router takes events.

        One that is stopped in the middle of its start leaves connections open, of which Python complains later.
        """
        every = frozenset(range(self._app.partitions))
        is_routing = not self._has_router or self.reports.of("routing")
        return bool(is_routing) and all(worker.served == every for worker in self.workers.values())

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self.client.close()
        super().__exit__(kind, *more)

    def events(self, category: str) -> list[Event]:
        """Everything committed in a category, partition by partition."""
        codec: MessageCodec[Event] = MessageCodec(self._app.decider(category).events)
        found = (codec.wanted(dict(r.headers)["ce_type"], r.value) for r in self.records(names.events(category)))
        return [event for event in found if event is not None]

    def records(self, topic: str) -> list[RawRecord]:
        """Everything committed in a topic."""
        return committed(self.settings, topic)

    def await_event(self, category: str, event: Event) -> None:
        """Waits until this event is written."""
        wait_until(
            lambda: self.going and event in self.events(category),
            lambda: f"{event!r}: {self.events(category)} {self.reports[-5:]}",
        )

    def _work(self, part: str, stop: threading.Event) -> None:
        if part != "router":
            self.workers[part].run()
            return
        (process,) = self._app.processes
        ProcessRouter(self._app, process.name, self.settings, stop=stop, report=self.reports).run()


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
