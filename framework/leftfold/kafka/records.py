"""Converts confluent-kafka messages to records, and handles batches that cannot be decompressed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from leftfold.errors import InfrastructureError
from leftfold.kafka.errors import QuietLog, translated
from leftfold.ports.bulk import ReadRecord
from leftfold.ports.message_codec import UNREADABLE
from leftfold.ports.protocols import RawRecord

__all__ = ["KafkaMessage", "is_packed", "nexts_of", "place", "raw", "read_behind", "split", "stand_in", "unpacked"]


KafkaMessage: TypeAlias = "Message[Any, Any]"

# The constructor of the named tuple costs twice as much, which matters at half a million records a second.
_new: Any = tuple.__new__
_error = Message.error


def raw(message: KafkaMessage) -> RawRecord:
    """The record in a message that is not an error; without headers if a header name is not UTF-8."""
    try:
        record: RawRecord = _new(RawRecord, (
            message.topic(), message.partition(), message.offset(), message.key(), message.value(),
            message.headers() or (), message.timestamp()[1],
        ))  # fmt: skip
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka returns from `headers` with an exception set, which surfaces in a later call.
        record = RawRecord(
            message.topic() or "", message.partition() or 0, message.offset() or 0, message.key(), message.value(), ()
        )
    return record


def place(message: KafkaMessage) -> tuple[int, int]:
    """The partition and offset of a message that is not an error."""
    return message.partition() or 0, message.offset() or 0


def nexts_of(messages: Iterable[KafkaMessage]) -> dict[int, int]:
    """The next offset after the last message of each partition."""
    return {partition: offset + 1 for partition, offset in map(place, messages)}


def split(messages: Sequence[KafkaMessage]) -> tuple[list[RawRecord], list[KafkaMessage]]:
    """Splits messages into records, in order, and errors or ends of partitions."""
    if not any(map(_error, messages)):
        try:
            return [
                _new(RawRecord, (
                    m.topic(), m.partition(), m.offset(), m.key(), m.value(), m.headers() or (), m.timestamp()[1]
                ))
                for m in messages
            ], []  # fmt: skip
        except (SystemError, UnicodeDecodeError):
            pass
    records, others = [], []
    for m in messages:
        if m.error() is None:
            records.append(raw(m))
        else:
            others.append(m)
    return records, others


_SECONDS = 20.0


class StandIn(ReadRecord):
    """A message without key and value, in place of a batch that cannot be decompressed.

    It has the last offset of the batch, and one header with the reason.
    """

    __slots__ = ()

    def topic(self) -> str:
        """The topic."""
        return self.record.topic

    def partition(self) -> int:
        """The partition."""
        return self.record.partition

    def error(self) -> None:
        """None, since the reader continues after the batch."""

    def timestamp(self) -> tuple[int, int]:
        """Zero, since the timestamp is unknown."""
        return 0, 0


def is_packed(message: KafkaMessage) -> bool:
    """Whether this message is the error of a batch that cannot be decompressed."""
    error = message.error()
    return error is not None and error.code() == KafkaError._BAD_COMPRESSION


def unpacked(config: Mapping[str, Any], consumer: Consumer, messages: Sequence[KafkaMessage]) -> list[KafkaMessage]:
    """Replaces batches that cannot be decompressed by stand-ins, and has the consumer continue after them.

    A consumer that is not polled for a while returns the same batch several times.

    Args:
        messages: of one fetch.

    Raises:
        InfrastructureError: no broker answers, or the partition is no longer assigned.
    """
    instead: dict[tuple[str | None, int | None, int | None], KafkaMessage] = {}
    found = list[KafkaMessage]()
    for message in messages:
        if not is_packed(message):
            found.append(message)
        elif (place := (message.topic(), message.partition(), message.offset())) not in instead:
            instead[place] = stand_in(config, message)
            found.append(instead[place])
    # All stand-ins exist before the first seek, so a skipped batch always has one.
    for one in instead.values():
        read_behind(consumer, one)
    return found


def read_behind(consumer: Consumer, message: KafkaMessage) -> None:
    """Has a consumer continue after a message.

    Raises:
        InfrastructureError: the partition is no longer assigned.
    """
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
    try:
        consumer.seek(TopicPartition(topic, partition, offset + 1))
    except KafkaException as error:
        raise translated(error, doing=f"reading {topic}[{partition}] after offset {offset}") from error


def stand_in(config: Mapping[str, Any], message: KafkaMessage) -> Any:
    """The stand-in for a batch that cannot be decompressed; the reader continues after its offset.

    The end of the batch is searched for by fetches from later offsets; each costs the size of the compressed batch.

    Args:
        config: the configuration of a client. message: the error.

    Raises:
        InfrastructureError: no broker answers.
    """
    error = message.error()
    topic, partition, base = message.topic() or "", message.partition() or 0, message.offset() or 0
    quick = {
        "group.id": f"leftfold.reader.{uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "fetch.error.backoff.ms": 1,
        "log_level": 2,
    }
    consumer = Consumer({**config, **quick}, logger=QuietLog("unpacking"))
    try:
        end, deadline = base + 1, time.monotonic() + _SECONDS
        inside, step = base, 1
        while _is_inside(consumer, TopicPartition(topic, partition, end), base, deadline):
            inside, step = end, 2 * step
            end += step
        while end - inside > 1:
            middle = (inside + end) // 2
            if _is_inside(consumer, TopicPartition(topic, partition, middle), base, deadline):
                inside = middle
            else:
                end = middle
    except KafkaException as failure:
        raise translated(failure, doing=f"looking for the end of a batch in {topic}[{partition}]") from failure
    finally:
        consumer.close()
    why = error.str() if error is not None else ""
    reason = f"{topic}[{partition}]: a batch of offsets {base} to {end - 1}: {why}"
    return StandIn(RawRecord(topic, partition, end - 1, None, None, [(UNREADABLE, reason.encode())]))


def _is_inside(consumer: Consumer, place: TopicPartition, base: int, deadline: float) -> bool:
    """Whether an offset belongs to the batch that begins at `base`."""
    high = consumer.get_watermark_offsets(place, timeout=_SECONDS)[1]
    if place.offset >= high:
        return False
    consumer.assign([place])
    while True:
        message = consumer.poll(1.0)
        if message is not None:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                return False
            if is_packed(message):
                return (message.offset() or 0) <= base
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{place.topic}[{place.partition}]: no broker says where a batch ends")
