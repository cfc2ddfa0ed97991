"""A lane's membership in the group of its category: what it owns, and what it fetched without interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.logs import QuietLog
from leftfold.kafka.records import KafkaMessage

__all__ = ["Member"]


class Member:
    """One consumer, cooperative and read_committed; new partitions stay paused until they are served.

    Args:
        leave: called inside the rebalance with partitions that are going: (partitions, still ours to commit).
    """

    def __init__(
        self, config: Mapping[str, Any], group: str, topic: str, leave: Callable[[list[int], bool], None]
    ) -> None:
        self.topic, self._leave = topic, leave
        self.new: set[int] = set()
        self._served: set[int] = set()
        self._touched: set[int] = set()
        self.consumer = Consumer(
            {
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 1000,
                "fetch.wait.max.ms": 100,
                "queued.min.messages": 20_000,
                "fetch.queue.backoff.ms": 2,
                "check.crcs": True,
                **config,
            },
            logger=QuietLog("worker"),
        )
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def fetch(self, limit: int, wait: float) -> list[KafkaMessage]:
        """Waits up to `wait` seconds for a command, then takes what is there: only of partitions that were served
        all the while. They stay messages until they are decided, since many records at once outgrow the processor's
        cache.
        """
        self._touched.clear()
        first = self.consumer.poll(wait)
        if first is None:
            return []
        messages = [first, *self.consumer.consume(limit - 1, 0)] if limit > 1 else [first]
        return [m for m in messages if self._usable(m)]

    def serve(self, partition: int, offset: int) -> None:
        """Starts fetching a new partition at an offset."""
        self.new.discard(partition)
        self._served.add(partition)
        self.rewind({partition: offset})
        self.consumer.resume([TopicPartition(self.topic, partition)])

    def rewind(self, offsets: Mapping[int, int]) -> None:
        """Goes back to these offsets."""
        for partition, offset in offsets.items():
            self.consumer.seek(TopicPartition(self.topic, partition, offset))

    def forsake(self, partition: int) -> None:
        """Stops serving a partition that is still ours; it counts as new again."""
        self._served.discard(partition)
        self.consumer.pause([TopicPartition(self.topic, partition)])
        self.new.add(partition)

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commits offsets with metadata, outside any transaction."""
        wanted = [TopicPartition(self.topic, p, offset, metadata) for p, (offset, metadata) in offsets.items()]
        if wanted:
            self.consumer.commit(offsets=wanted, asynchronous=False)

    def committed(self, partitions: Iterable[int], timeout: float) -> list[TopicPartition]:
        """The stable committed offsets with their metadata."""
        return self.consumer.committed([TopicPartition(self.topic, p) for p in partitions], timeout=timeout)

    def close(self) -> None:
        """Leaves the group; what is still owned goes through `leave`."""
        self.consumer.close()

    def _usable(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            partition = message.partition()
            return partition in self._served and partition not in self._touched
        if error.fatal():
            raise Fenced(f"the consumer of {self.topic} cannot go on: {error}")
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise InfrastructureError(f"{self.topic}: {error.str()}; was the topic deleted? see: leftfold check")
        return False

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {tp.partition for tp in partitions}
        self._touched |= numbers
        self.new |= numbers
        for partition in partitions:
            # Without an offset librdkafka asks for the committed one first, which waits for open transactions, and
            # until then `seek` fails.
            partition.offset = OFFSET_END
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._gone(consumer, partitions, ours=True)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._gone(consumer, partitions, ours=False)

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition], *, ours: bool) -> None:
        numbers = [tp.partition for tp in partitions]
        self._touched |= set(numbers)
        self._leave(numbers, ours)
        self._served -= set(numbers)
        self.new -= set(numbers)
        consumer.incremental_unassign(partitions)
