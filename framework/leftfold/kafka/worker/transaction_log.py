"""Reads from Kafka's transaction log how the last transactions of a transactional id ended."""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from enum import IntEnum

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leftfold.kafka.records import KafkaMessage
from leftfold.ports.protocols import PartitionId

__all__ = ["TransactionOutcome", "last_places", "outcomes_of", "records_between", "transactional_ids"]


_PATIENCE = 5.0


def records_between(
    consumer: Consumer, place: TopicPartition, start: int, end: int, patience: float = _PATIENCE
) -> Generator[KafkaMessage]:
    """The records between two offsets; `patience` is how many seconds each may take.

    The last offsets may be transaction markers, after which the consumer reports PARTITION_EOF.
    """
    here = TopicPartition(place.topic, place.partition, start)
    consumer.assign([here])
    try:
        while consumer.position([here])[0].offset < end and start < end:
            message = consumer.poll(patience)
            if message is None:
                late = f"{place.topic}[{place.partition}] returns no records"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise KafkaException(error)
            if (message.offset() or 0) >= end:
                break
            yield message
    finally:
        consumer.unassign()


TOPIC = "__transaction_state"
_OUTCOME_SECONDS = 20.0
# Kafka's TransactionLogKey 0 is `version int16, id string`; TransactionLogValue 0 and 1 both begin with `version int16,
# producer id int64, epoch int16, timeout int32, status int8`, followed by its partitions.
_KEY_HEAD, _STATUS, _PARTITIONS = 4, 16, 17


class TransactionOutcome(IntEnum):
    """The outcome of a transaction: commit or abort."""

    COMMIT = 0
    ABORT = 1


_PREPARED = {2: TransactionOutcome.COMMIT, 3: TransactionOutcome.ABORT}
_COMPLETE = {4: TransactionOutcome.COMMIT, 5: TransactionOutcome.ABORT}


def outcomes_of(
    consumer: Consumer, transactional_id: str, places: Collection[PartitionId]
) -> dict[PartitionId, TransactionOutcome]:
    """The outcome of the last transaction of this id that wrote to each of these partitions.

    A later transaction of the same id does not count for partitions that it did not write to. Where the transaction
    log has been compacted after the decision, the last outcome of the id counts. Empty if the log has no outcome.

    Args:
        consumer: reads uncommitted records, and is assigned to nothing.

    Raises:
        KafkaException: the broker does not answer, or refuses access to its transaction log.
    """
    last: TransactionOutcome | None = None
    found: dict[PartitionId, TransactionOutcome] = {}
    for value in _log(consumer, transactional_id):
        status = value[_STATUS]
        last = _PREPARED.get(status, _COMPLETE.get(status, last))
        if status in _PREPARED:
            found.update(dict.fromkeys(_partitions(value) & set(places), _PREPARED[status]))
    return found if last is None else dict.fromkeys(places, last) | found


def last_places(consumer: Consumer, transactional_id: str) -> set[PartitionId]:
    """The partitions of the last transaction of this id that was decided; empty if the log has none.

    Raises:
        KafkaException: as `outcomes_of`.
    """
    decided = [value for value in _log(consumer, transactional_id) if value[_STATUS] in _PREPARED]
    return _partitions(decided[-1]) if decided else set()


def transactional_ids(consumer: Consumer, prefix: str, place: PartitionId, since: int) -> dict[str, TransactionOutcome]:
    """The transactional ids with decided transactions that wrote to a partition since a time in ms, and the last one's.

    Those come first that have decided nothing for the longest time: they may be of dead workers.

    Raises:
        KafkaException: as `outcomes_of`.
    """
    last, found = dict[str, int](), dict[str, TransactionOutcome]()
    places = [TopicPartition(TOPIC, partition, since) for partition in range(_count(consumer))]
    for start in consumer.offsets_for_times(places, timeout=10.0):
        for id_, decided_at, value in _read(consumer, start.partition, start.offset) if start.offset >= 0 else ():
            if id_.startswith(prefix) and value[_STATUS] in _PREPARED:
                last[id_] = decided_at
                if place in _partitions(value):
                    found[id_] = _PREPARED[value[_STATUS]]
    return {id_: found[id_] for id_ in sorted(found, key=last.__getitem__)}


def _log(consumer: Consumer, transactional_id: str) -> Iterator[bytes]:
    """The records of the transaction log for a transactional id, in order."""
    partition = _partition(transactional_id, _count(consumer))
    return (value for id_, _, value in _read(consumer, partition) if id_ == transactional_id)


def _count(consumer: Consumer) -> int:
    known = consumer.list_topics(TOPIC, timeout=10.0).topics[TOPIC]
    if known.error is not None:
        raise KafkaException(known.error)
    return len(known.partitions)


def _read(consumer: Consumer, partition: int, start: int = 0) -> Iterator[tuple[str, int, bytes]]:
    """The transactional id, time in ms and value of the records of a partition of the transaction log, in order."""
    place = TopicPartition(TOPIC, partition)
    low, end = consumer.get_watermark_offsets(place, timeout=10.0)
    with closing(records_between(consumer, place, max(low, start), end, _OUTCOME_SECONDS)) as records:
        for message in records:
            if value := message.value():
                yield (message.key() or b"")[_KEY_HEAD:].decode(errors="replace"), message.timestamp()[1], value


def _partitions(value: bytes) -> set[PartitionId]:
    """The partitions of a transaction; version 1 writes each length as a varint of length + 1 (KIP-482)."""
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

    found = set[PartitionId]()
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
    """The transaction log partition of an id: Java's String.hashCode without its sign (Kafka's Utils.abs)."""
    hashed = 0
    raw = transactional_id.encode("utf-16-be")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % count
