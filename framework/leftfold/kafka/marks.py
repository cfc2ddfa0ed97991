"""Finds `@` records in a state partition, and who has written what waits behind the stable end of any."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leftfold.engine.statemark import MARK, StateMark
from leftfold.kafka.records import KafkaMessage

__all__ = ["is_written_by", "last_mark", "mark_at"]

_FIRST_STEP = 200
_PATIENCE = 5.0


def mark_at(consumer: Consumer, place: TopicPartition, offset: int) -> bytes:
    """The first `@` at an offset or behind it; b"" when there is none.

    Raises:
        KafkaException: no answer in time, among others; as `last_mark`.
    """
    return next(iter(_marks(consumer, place, offset, _end(consumer, place), first=True)), b"")


def last_mark(consumer: Consumer, place: TopicPartition) -> bytes:
    """The last `@` that the consumer sees; b"" when there is none."""
    low, end = consumer.get_watermark_offsets(place, timeout=5.0)
    step = _FIRST_STEP
    while True:
        start = max(low, end - step)
        if found := _marks(consumer, place, start, end, first=False):
            return found[-1]
        if start <= low:
            return b""
        step *= 10


def is_written_by(consumer: Consumer, place: TopicPartition, start: int, source: bytes) -> bool:
    """Whether a record from an offset on has this `ce_source`."""
    with closing(_records(consumer, place, start, _end(consumer, place))) as records:
        return any(dict(message.headers() or ()).get("ce_source") == source for message in records)


def _end(consumer: Consumer, place: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(place, timeout=5.0)[1])


def _marks(consumer: Consumer, place: TopicPartition, start: int, end: int, *, first: bool) -> list[bytes]:
    """The marks between two offsets, or only the first one."""
    found: list[bytes] = []
    with closing(_records(consumer, place, start, end)) as records:
        for message in records:
            if message.key() == MARK and (value := message.value()) and StateMark.read(value) is not None:
                found.append(value)
                if first:
                    break
    return found


def _records(consumer: Consumer, place: TopicPartition, start: int, end: int) -> Generator[KafkaMessage]:
    """What lies between two offsets; the last ones may be markers of transactions, which end in PARTITION_EOF."""
    here = TopicPartition(place.topic, place.partition, start)
    consumer.assign([here])
    try:
        while consumer.position([here])[0].offset < end and start < end:
            message = consumer.poll(_PATIENCE)
            if message is None:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, f"{place.topic}[{place.partition}] tells nothing")
                )
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise KafkaException(error)
            if (message.offset() or 0) >= end:
                break
            yield message
    finally:
        consumer.unassign()
