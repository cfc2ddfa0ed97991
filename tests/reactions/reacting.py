"""Reactions at work on threads of the test's own process, events as a worker writes them, and what a group has done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from leftfold import App, Delivery, Reaction
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.reactions.parked import ParkedEvents
from leftfold.kafka.reactions.runner import ReactionRunner
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from tests import planted
from tests.domains.visits import Paid, app_with, receipts_with
from tests.planted import as_written
from tests.reports import Reports
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["EVENTS", "Acting", "Post", "acting_until_parked", "done_up_to", "made", "notes", "write"]

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


class Acting(Background):
    """A process of a reaction; unless it is to fail, the block begins once it holds all partitions."""

    def __init__(self, app: App, name: str, settings: KafkaSettings, *, fails: bool = False) -> None:
        super().__init__(lambda stop: self.reacting.run(), raises=not fails)
        self._fails, self.reports = fails, Reports()
        self.reacting = ReactionRunner(app, name, settings, stop=self.stop, report=self.reports)

    def wait_begun(self) -> None:
        wait_until(lambda: self._fails or self.serves_all(), lambda: f"the partitions: {self.reports}")

    def serves_all(self) -> bool:
        """Whether it holds all partitions."""
        return self.going and len(self.reacting.served) == PARTITIONS


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
    records = [as_written(one, PARTITIONS, ce_type=type_, ce_sequence=b"%d" % one.number) for one in events]
    records = [out._replace(value=b"{}") for out in records] if broken else records
    planted.write(settings, EVENTS, records, commit=commit)


def acting_until_parked(settings: KafkaSettings, app: App, name: str, *events: Paid) -> None:
    """Has a reaction that fails park some events."""
    parked = ParkedEvents(name, settings)
    with Acting(app, name, settings):
        write(settings, *events)
        wait_until(lambda: parked.count() == len(events), lambda: f"all to be parked: {parked.count()}")


def done_up_to(settings: KafkaSettings, group: str) -> dict[int, int]:
    """The offsets that a group has committed, by partition; negative where there are none."""
    return {place.partition: place.offset for place in _committed(settings, group)}


def notes(settings: KafkaSettings, group: str) -> dict[int, str]:
    """What a group has left behind with its offsets, by partition."""
    return {place.partition: place.metadata or "" for place in _committed(settings, group)}


def _committed(settings: KafkaSettings, group: str) -> list[TopicPartition]:
    consumer = Consumer({**settings.librdkafka(), "group.id": group, "enable.auto.commit": False})
    try:
        return consumer.committed([TopicPartition(EVENTS, p) for p in range(PARTITIONS)], WAIT_SECONDS)
    finally:
        consumer.close()
