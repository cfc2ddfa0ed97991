"""What a coordinator wrote down about a transactional id: the only witness of a transaction that it has forgotten."""

from __future__ import annotations

import time
from enum import IntEnum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

__all__ = ["Outcome", "last_outcome"]

TOPIC = "__transaction_state"
_PATIENCE = 20.0
# Kafka's TransactionLogKey 0 is `version int16, id string`; TransactionLogValue 0 and 1 both begin with `version int16,
# producer id int64, epoch int16, timeout int32, status int8`.
_KEY_HEAD, _STATUS = 4, 16


class Outcome(IntEnum):
    """How a transaction was decided to end."""

    COMMIT = 0
    ABORT = 1


_PREPARED = {2: Outcome.COMMIT, 3: Outcome.ABORT, 4: Outcome.COMMIT, 5: Outcome.ABORT}


def last_outcome(consumer: Consumer, transactional_id: str) -> Outcome | None:
    """How the last transaction of this id that was decided at all was decided, None when nobody knows any more.

    Args:
        consumer: of uncommitted records, assigned to nothing.

    Raises:
        KafkaException: the broker does not answer, or does not let us read its transaction log.
    """
    known = consumer.list_topics(TOPIC, timeout=10.0).topics[TOPIC]
    if known.error is not None:
        raise KafkaException(known.error)
    place = TopicPartition(TOPIC, _partition(transactional_id, len(known.partitions)), 0)
    place.offset, end = consumer.get_watermark_offsets(place, timeout=10.0)
    found, deadline = None, time.monotonic() + _PATIENCE
    consumer.assign([place])
    try:
        while consumer.position([place])[0].offset < end and place.offset < end:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{TOPIC} was not read to its end"))
            message = consumer.poll(0.5)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise KafkaException(error)
            key, value = message.key() or b"", message.value()
            if value and key[_KEY_HEAD:] == transactional_id.encode():
                found = _PREPARED.get(value[_STATUS], found)
    finally:
        consumer.unassign()
    return found


def _partition(transactional_id: str, count: int) -> int:
    """Where a coordinator keeps an id: Java's String.hashCode without its sign (Kafka's Utils.abs)."""
    hashed = 0
    raw = transactional_id.encode("utf-16-be")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % count
