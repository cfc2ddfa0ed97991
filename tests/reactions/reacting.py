"""Reactions at work on threads of the test's own process, events as a worker writes them, and what a group has done."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from leftfold import App, Delivery, Reaction
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.reactions.runner import ReactionRunner
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.domains.visits import Paid, app_with, receipts_with
from tests.waiting import wait_until

__all__ = ["EVENTS", "Post", "acting", "done_up_to", "made", "notes", "write"]

EVENTS = names.events("visits")
PARTITIONS = 2


class Post:
    """Receives what is sent; a function of the test's own may refuse it first."""

    def __init__(self, first: Callable[[Paid, Delivery], None] = lambda event, delivery: None) -> None:
        self._first, self._lock = first, threading.Lock()
        self.deliveries: list[tuple[Paid, Delivery]] = []

    def act(self, event: Paid, delivery: Delivery) -> None:
        """What the reaction does."""
        self._first(event, delivery)
        with self._lock:
            self.deliveries.append((event, delivery))

    def numbers(self, visit: str) -> list[int]:
        """What came for a visit, in order."""
        with self._lock:
            return [event.number for event, _ in self.deliveries if event.visit == visit]

    def keys(self) -> list[str]:
        """The keys of all that came, repetitions too."""
        with self._lock:
            return [delivery.idempotency_key for _, delivery in self.deliveries]


class Acting:
    """One process of a reaction, on a thread."""

    def __init__(self, app: App, name: str, settings: KafkaSettings) -> None:
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.failures: list[BaseException] = []
        self.stop = threading.Event()
        self.reacting = ReactionRunner(
            app, name, settings, stop=self.stop, report=lambda *reported: self.reports.append(reported)
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops in order."""
        self.stop.set()
        self._thread.join(240.0)
        assert not self._thread.is_alive(), "the reaction does not end"

    def _run(self) -> None:
        try:
            self.reacting.run()
        except BaseException as error:  # whatever it is, the test looks at it
            self.failures.append(error)


@contextmanager
def acting(app: App, name: str, settings: KafkaSettings, *, fails: bool = False) -> Iterator[Acting]:
    """A process of a reaction that holds all partitions while the block runs."""
    one = Acting(app, name, settings)
    try:
        if not fails:
            wait_until(lambda: one.failures != [] or len(one.reacting.served) == PARTITIONS, "the partitions")
        yield one
    finally:
        one.end()
    if not fails and one.failures:
        raise one.failures[0]


def made(settings: KafkaSettings, name: str, act: Callable[[Any, Delivery], None], **other: Any) -> App:
    """An App with a reaction of its own, and its topics."""
    reaction: Reaction[Any] = receipts_with(act, name=name, **other)
    app = app_with(reaction, partitions=PARTITIONS)
    ensure(app, settings)
    return app


def write(
    settings: KafkaSettings, *events: Paid, commit: bool = True, type_: bytes = b"visits.Paid.v1", broken: bool = False
) -> None:
    """Events in one transaction that is committed or aborted."""
    producer = Producer({**settings.librdkafka(), "transactional.id": "planted"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for event in events:
        key = event.visit.encode()
        headers: Any = [
            ("ce_id", str(uuid.uuid4()).encode()),
            ("ce_type", type_),
            ("ce_time", b"2026-01-01T00:00:00Z"),
            ("ce_sequence", str(event.number).encode()),
            ("ce_decision", b"1/1"),
        ]
        value = b"{}" if broken else event.model_dump_json().encode()
        producer.produce(EVENTS, value, key, partition_of(key, PARTITIONS), headers=headers)
    producer.flush(240.0)
    (producer.commit_transaction if commit else producer.abort_transaction)(60)


def done_up_to(settings: KafkaSettings, group: str) -> dict[int, int]:
    """The offsets that a group has committed, by partition; negative where there are none."""
    return {place.partition: place.offset for place in _committed(settings, group)}


def notes(settings: KafkaSettings, group: str) -> dict[int, str]:
    """What a group has left behind with its offsets, by partition."""
    return {place.partition: place.metadata or "" for place in _committed(settings, group)}


def _committed(settings: KafkaSettings, group: str) -> list[TopicPartition]:
    consumer = Consumer({**settings.librdkafka(), "group.id": group, "enable.auto.commit": False})
    try:
        return consumer.committed([TopicPartition(EVENTS, p) for p in range(PARTITIONS)], 20)
    finally:
        consumer.close()
