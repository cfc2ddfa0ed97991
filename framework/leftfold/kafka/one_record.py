"""One record by itself: read where it stands, or written, for whoever does so by hand."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.engine.batch import Outgoing
from leftfold.errors import ContractError, LeftfoldError
from leftfold.kafka.errors import translated
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.records import KafkaMessage, place
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports import RawRecord
from leftfold.position import Position

__all__ = ["record_at", "write_record"]

_SECONDS, _PAUSE = 20, 0.1


def record_at(settings: KafkaSettings, topic: str, partition: int, offset: int) -> RawRecord:
    """The committed record that stands there.

    Raises:
        ContractError: none does. InfrastructureError: no broker answers, or the topic does not exist.
    """
    log = KafkaLogReader(settings)
    try:
        place, behind = Position.at(topic, partition, offset), Position.at(topic, partition, offset + 1)
        if log.ends([topic]).covers(behind) and log.starts([topic]).next_offset(topic, partition) <= offset:
            log.seek(place)
            deadline = time.monotonic() + _SECONDS
            while not log.position().covers(behind) and time.monotonic() < deadline:
                for record in log.poll(1, 1.0):
                    if record.offset == offset:
                        return record
    finally:
        log.close()
    raise ContractError(f"{topic}[{partition}]@{offset}: no committed record stands there, or not any more")


def write_record(settings: KafkaSettings, topic: str, out: Outgoing) -> int:
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
    producer = Producer(config, logger=QuietLog("record"))
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
