"""Reads offset ranges of the log for rebuilds, as plain librdkafka messages that are decoded only on demand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from leftfold.engine.log_gaps import log_gap
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import OUT_OF_RANGE, QuietLog, translated
from leftfold.kafka.log_reader import reader_config
from leftfold.kafka.records import KafkaMessage, unpacked
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkRecord, OffsetRange

__all__ = ["KafkaBulkLog"]

# Larger lists of messages outgrow the CPU cache and cost up to four times as much per message.
_MANY = 100
_SILENCE = 60.0
_error = Message.error


class KafkaBulkLog:
    """A BulkLog on Kafka: one consumer that reads committed records of one partition at a time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = Consumer(reader_config(settings), logger=QuietLog("rebuild"))
        self._cluster: ClusterAdmin | None = None

    def partitions(self, topic: str) -> int:
        """The partition count of a topic."""
        return self._admin().partitions(topic)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The last stable offset of every partition, where a consumer of committed records stops."""
        return Position({t: {p: self._watermarks(t, p)[1] for p in range(self.partitions(t))} for t in topics})

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that every partition still holds."""
        return Position({t: {p: self._watermarks(t, p)[0] for p in range(self.partitions(t))} for t in topics})

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        """The topics' ids in their cluster; a missing topic is left out."""
        return self._admin().identities(topics)

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """Reads the records of an offset range in order, up to its end.

        The last offset of the range may be a record, a transaction marker or an aborted record.

        Raises:
            InfrastructureError: a record of the range has been deleted, or nothing arrives for a minute.
        """
        topic, partition, start, end = part
        if start >= end:
            return
        self._consumer.assign([TopicPartition(topic, partition, start)])
        last_progress = time.monotonic()
        while True:
            first = self._consumer.poll(1.0)
            if first is None:
                self._check_silence(part, last_progress)
                continue
            last_progress = time.monotonic()
            messages: list[KafkaMessage] = [first, *self._consumer.consume(_MANY - 1, 0)]
            has_errors = any(map(_error, messages))
            if has_errors:
                messages = unpacked(self._settings.librdkafka(), self._consumer, messages)
            ended = self._ended(part, messages[-1])
            if ended or has_errors:
                messages = [m for m in messages if not self._is_end(part, m) and (m.offset() or 0) < end]
            if messages:
                yield messages  # type: ignore[misc]  # a message is a BulkRecord; its stubs say offset() may be None
            if ended:
                return

    def close(self) -> None:
        """Closes the connections."""
        self._consumer.close()
        if self._cluster is not None:
            self._cluster.close()

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10.0)
        except KafkaException as error:
            raise translated(error, doing=f"asking for the ends of {topic}[{partition}]") from error
        return low, high

    def _admin(self) -> ClusterAdmin:
        if self._cluster is None:
            self._cluster = ClusterAdmin(self._settings)
        return self._cluster

    def _ended(self, part: OffsetRange, last: KafkaMessage) -> bool:
        """Whether this message is the last of the range, or the partition ends here."""
        offset = last.offset() or 0
        return offset >= part.end if last.error() else offset >= part.end - 1

    def _is_end(self, part: OffsetRange, message: KafkaMessage) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.code() in OUT_OF_RANGE:
            low, high = self._watermarks(part.topic, part.partition)
            if part.start < low:
                raise log_gap(part.topic, part.partition, part.start, min(low, part.end))
            raise InfrastructureError(
                f"{part.topic}[{part.partition}] is to be read from {part.start}, but holds {low} to {high}; it is "
                f"shorter than it was: the topic was recreated, or has lost records"
            )
        raise translated(error, doing=f"reading {part.topic}[{part.partition}]")

    def _check_silence(self, part: OffsetRange, last_progress: float) -> None:
        if time.monotonic() - last_progress > _SILENCE:
            raise InfrastructureError(
                f"nothing came from {part.topic}[{part.partition}] for {_SILENCE:.0f} s; see leftfold status"
            )
