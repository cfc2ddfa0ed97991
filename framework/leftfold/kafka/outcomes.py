"""What a coordinator wrote down about a transactional id: the only witness of transactions that it has forgotten."""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator
from enum import IntEnum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

__all__ = ["Outcome", "outcomes_of"]

TOPIC = "__transaction_state"
_PATIENCE = 20.0
# Kafka's TransactionLogKey 0 is `version int16, id string`; TransactionLogValue 0 and 1 both begin with `version int16,
# producer id int64, epoch int16, timeout int32, status int8`, behind which its partitions stand.
_KEY_HEAD, _STATUS, _PARTITIONS = 4, 16, 17


class Outcome(IntEnum):
    """How a transaction was decided to end."""

    COMMIT = 0
    ABORT = 1


_PREPARED = {2: Outcome.COMMIT, 3: Outcome.ABORT}
_COMPLETE = {4: Outcome.COMMIT, 5: Outcome.ABORT}


def outcomes_of(
    consumer: Consumer, transactional_id: str, places: Collection[tuple[str, int]]
) -> dict[tuple[str, int], Outcome]:
    """How the last transaction of this id that wrote to each of these partitions was decided to end.

    A later transaction of the same id says nothing of partitions that it did not touch. Where the log has been
    compacted behind the decision, the last one of the id counts; none at all = nobody knows any more.

    Args:
        consumer: of uncommitted records, assigned to nothing.

    Raises:
        KafkaException: the broker does not answer, or does not let us read its transaction log.
    """
    last: Outcome | None = None
    found: dict[tuple[str, int], Outcome] = {}
    for value in _log(consumer, transactional_id):
        status = value[_STATUS]
        last = _PREPARED.get(status, _COMPLETE.get(status, last))
        if status in _PREPARED:
            found.update(dict.fromkeys(_partitions(value) & set(places), _PREPARED[status]))
    return found if last is None else dict.fromkeys(places, last) | found


def _log(consumer: Consumer, transactional_id: str) -> Iterator[bytes]:
    """What the coordinator wrote about an id, in its order."""
    known = consumer.list_topics(TOPIC, timeout=10.0).topics[TOPIC]
    if known.error is not None:
        raise KafkaException(known.error)
    place = TopicPartition(TOPIC, _partition(transactional_id, len(known.partitions)), 0)
    place.offset, end = consumer.get_watermark_offsets(place, timeout=10.0)
    deadline = time.monotonic() + _PATIENCE
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
                yield value
    finally:
        consumer.unassign()


def _partitions(value: bytes) -> set[tuple[str, int]]:
    """The partitions of a transaction; version 1 writes lengths as varints, one more than they are (KIP-482)."""
    is_flexible = value[1] > 0
    at = _PARTITIONS

    def length(fixed: str) -> int:
        nonlocal at
        if not is_flexible:
            (count,) = struct.unpack_from(fixed, value, at)
            at += struct.calcsize(fixed)
            return int(count)
        count = shift = 0
        while True:
            byte = value[at]
            at += 1
            count |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return count - 1

    found = set[tuple[str, int]]()
    for _ in range(length(">i")):
        size = length(">h")
        topic = value[at : at + size].decode()
        at += size
        count = length(">i")
        found.update((topic, number) for (number,) in struct.iter_unpack(">i", value[at : at + 4 * count]))
        at += 4 * count
        if is_flexible:
            length("")  # tags, of which there are none
    return found


def _partition(transactional_id: str, count: int) -> int:
    """Where a coordinator keeps an id: Java's String.hashCode without its sign (Kafka's Utils.abs)."""
    hashed = 0
    raw = transactional_id.encode("utf-16-be")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % count
