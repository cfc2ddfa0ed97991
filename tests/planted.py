"""Events as a worker writes them, from a producer of the test's own."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from confluent_kafka import Producer

from leftfold import Event
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.outgoing import Outgoing
from tests.waiting import WAIT_SECONDS

__all__ = ["as_written", "event_headers", "open_transaction", "write"]


def event_headers(event: Event, **replaced: bytes) -> list[tuple[str, bytes]]:
    """The headers of an event that is a decision of its own; those that are named replace what it would have."""
    found = {
        "ce_id": uuid4().hex.encode(),
        "ce_type": type(event).__leftfold__.type.encode(),
        "ce_time": b"2026-01-01T00:00:00Z",
        "ce_sequence": b"1",
        "ce_decision": b"1/1",
    }
    return list((found | replaced).items())


def as_written(event: Event, partitions: int, **replaced: bytes) -> Outgoing:
    """The record of an event, in the partition of its key; headers as above."""
    key = str(getattr(event, type(event).__leftfold__.key)).encode()
    headers = event_headers(event, **replaced)
    return Outgoing(partition_of(key, partitions), key, event.model_dump_json().encode(), headers)


def write(kafka: KafkaSettings, topic: str, records: Iterable[Outgoing], *, commit: bool | None = True) -> None:
    """Writes records in one transaction that is committed or aborted, or outside of any (None)."""
    if commit is None:
        _produce(Producer(kafka.librdkafka()), topic, records)
        return
    producer = open_transaction(kafka, topic, records)
    (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECONDS)


def open_transaction(kafka: KafkaSettings, topic: str, records: Iterable[Outgoing]) -> Producer:
    """Writes records in a transaction that is open; the next one of a test would fence it."""
    producer = Producer({**kafka.librdkafka(), "transactional.id": "planted"})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    _produce(producer, topic, records)
    return producer


def _produce(producer: Producer, topic: str, records: Iterable[Outgoing]) -> None:
    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        failures.extend([error] if error is not None else [])

    for out in records:
        producer.produce(topic, out.value, out.key, out.partition, headers=list(out.headers), on_delivery=delivered)
    assert (producer.flush(WAIT_SECONDS), failures) == (0, [])
