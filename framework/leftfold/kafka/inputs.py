"""Writes one input of a process, for whoever does so by hand."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.engine.batch import Outgoing
from leftfold.errors import LeftfoldError
from leftfold.kafka.errors import translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.records import KafkaMessage, place
from leftfold.kafka.settings import KafkaSettings

__all__ = ["write_input"]

_SECONDS, _PAUSE = 20, 0.1


def write_input(settings: KafkaSettings, topic: str, out: Outgoing) -> int:
    """Writes a record, waits until every replica in sync has it, and returns its offset.

    Raises:
        InfrastructureError: it was not seen to arrive within 20 s; it may be there.
    """
    config: dict[str, Any] = {
        **settings.librdkafka(),
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": _SECONDS * 1000,
    }
    producer = Producer(config, logger=QuietLog("inputs"))
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def told(error: KafkaError | None, message: KafkaMessage) -> None:
        if error is None:
            offsets.append(place(message)[1])
        else:
            failures.append(error)

    headers: Any = list(out.headers)
    try:
        producer.produce(topic, out.value, out.key, out.partition, headers=headers, on_delivery=told)
    except KafkaException as error:
        raise _failed(error, topic) from error
    while not offsets and not failures:
        producer.flush(_PAUSE)  # a signal is heard in between only
    if failures:
        raise _failed(failures[0], topic)
    return offsets[0]


def _failed(error: KafkaException | KafkaError, topic: str) -> LeftfoldError:
    return translated(error, doing=f"writing to {topic}")
