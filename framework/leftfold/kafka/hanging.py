"""Ends transactions whose writer is gone, by taking over its transactional id once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.statemark import MARK, StateMark

__all__ = ["Hanging"]

_BACK = 200
_GRACE = 1.0


class Hanging:
    """Looks for open transactions that hold back some partitions, and ends them.

    Every worker's transaction writes `@` first into each state partition it touches, so the uncommitted end of a state
    partition names the writers in question.

    Args:
        committed, uncommitted: consumers of committed and of all records; the first takes the last stable offset for
            the end of a partition. topics: the state topic, then the others that a worker writes.
    """

    def __init__(
        self,
        committed: Consumer,
        uncommitted: Consumer,
        new_producer: Callable[[str], Producer],
        topics: Sequence[str],
    ) -> None:
        self._committed, self._uncommitted, self._new_producer = committed, uncommitted, new_producer
        self._topics = topics

    def end(self, partitions: Iterable[int]) -> list[str]:
        """Ends what hangs on these partitions of all topics; returns the transactional ids that were taken over."""
        numbers = list(partitions)
        stuck = self._stuck(numbers)
        writers = {writer for p in sorted({tp.partition for tp in stuck}) if (writer := self._writer(p))}
        for writer in sorted(writers):
            producer = self._new_producer(writer)
            try:
                producer.init_transactions(10.0)
                self._force(producer, numbers)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        return sorted(writers)

    def _force(self, producer: Producer, partitions: Sequence[int]) -> None:
        """Where the takeover changed nothing, the coordinator has forgotten the transaction, as one does whose broker
        was killed while it rolled back: an aborted transaction of the same producer writes the marker that is missing.
        """
        deadline = time.monotonic() + _GRACE
        while stuck := self._stuck(partitions):
            if time.monotonic() > deadline:
                producer.begin_transaction()
                for place in stuck:
                    producer.produce(place.topic, None, MARK, place.partition)
                producer.flush(10.0)
                producer.abort_transaction(10.0)
                return
            time.sleep(0.05)

    def _stuck(self, partitions: Iterable[int]) -> list[TopicPartition]:
        places = [TopicPartition(topic, p) for p in partitions for topic in self._topics]
        return [place for place in places if self._stable(place) < self._end(place)]

    def _stable(self, place: TopicPartition) -> int:
        return int(self._committed.get_watermark_offsets(place, timeout=5.0)[1])

    def _end(self, place: TopicPartition) -> int:
        return int(self._uncommitted.get_watermark_offsets(place, timeout=5.0)[1])

    def _writer(self, partition: int) -> str:
        """Who wrote the `@` behind the last stable offset or, when the state partition itself is free, the last `@`."""
        place = TopicPartition(self._topics[0], partition)
        stable, end = self._stable(place), self._end(place)
        writer = ""
        self._uncommitted.assign([TopicPartition(place.topic, partition, min(stable, max(0, end - _BACK)))])
        try:
            while (message := self._uncommitted.poll(2.0)) is not None and message.error() is None:
                offset = message.offset() or 0
                if message.key() == MARK and message.value() and (offset >= stable or stable >= end):
                    writer = StateMark.decode(message.value() or b"{}").writer
                    if offset >= stable:
                        break
                if offset >= end - 1:
                    break
        finally:
            self._uncommitted.unassign()
        return writer
