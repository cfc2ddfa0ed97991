"""Ends transactions whose writer is gone, by taking over its transactional id once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.statemark import MARK, StateMark

__all__ = ["end_hanging"]


def end_hanging(
    committed: Consumer,
    uncommitted: Consumer,
    new_producer: Callable[[str], Producer],
    topic: str,
    partitions: Iterable[int],
) -> list[str]:
    """Ends the open transactions that hold back state partitions; returns the transactional ids that had them.

    Every worker's transaction writes `@` first into each state partition it touches, so behind the last stable
    offset (which `committed` sees as the end) stands the `@` that names the writer.
    """
    writers = {writer for p in partitions if (writer := _writer(committed, uncommitted, TopicPartition(topic, p)))}
    for writer in sorted(writers):
        try:
            new_producer(writer).init_transactions(10.0)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    return sorted(writers)


def _writer(committed: Consumer, uncommitted: Consumer, partition: TopicPartition) -> str:
    stable = committed.get_watermark_offsets(partition, timeout=5.0)[1]
    end = uncommitted.get_watermark_offsets(partition, timeout=5.0)[1]
    if stable >= end:
        return ""
    uncommitted.assign([TopicPartition(partition.topic, partition.partition, stable)])
    try:
        message = uncommitted.poll(2.0)
        if message is None or message.error() is not None or message.key() != MARK:
            return ""
        return StateMark.decode(message.value() or b"{}").writer
    finally:
        uncommitted.unassign()
