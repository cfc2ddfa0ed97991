"""Messages of confluent-kafka as our records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from confluent_kafka import Message

from leftfold.ports import RawRecord

__all__ = ["KafkaMessage", "nexts_of", "place", "raw", "split"]

KafkaMessage: TypeAlias = "Message[Any, Any]"

# The named constructor costs twice as much, which shows at half a million records a second.
_new: Any = tuple.__new__
_error = Message.error


def raw(message: KafkaMessage) -> RawRecord:
    """The record in a message that is no error; without headers when one has a name that is no UTF-8."""
    try:
        record: RawRecord = _new(RawRecord, (
            message.topic(), message.partition(), message.offset(), message.key(), message.value(),
            message.headers() or (), message.timestamp()[1],
        ))  # fmt: skip
    except (SystemError, UnicodeDecodeError):
        # confluent-kafka returns from `headers` with an exception set, which surfaces somewhere behind it.
        record = RawRecord(
            message.topic() or "", message.partition() or 0, message.offset() or 0, message.key(), message.value(), ()
        )
    return record


def place(message: KafkaMessage) -> tuple[int, int]:
    """The partition and offset of a message that is no error."""
    return message.partition() or 0, message.offset() or 0


def nexts_of(messages: Iterable[KafkaMessage]) -> dict[int, int]:
    """The offset behind the last message of each partition."""
    return {partition: offset + 1 for partition, offset in map(place, messages)}


def split(messages: Sequence[KafkaMessage]) -> tuple[list[RawRecord], list[KafkaMessage]]:
    """The records among the messages, in their order, and beside them the errors and ends of partitions."""
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
