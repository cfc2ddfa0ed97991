"""A consumer-group member that reads event topics from start offsets that its caller gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.errors import NOT_ALLOWED, QuietLog, translated
from leftfold.kafka.records import KafkaMessage, is_packed, raw, split, unpacked
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.protocols import RawRecord

__all__ = ["FetchedRecords", "SharedLog", "member_config"]

PartitionId: TypeAlias = tuple[str, int]
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_NOT_OURS = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError._NO_OFFSET, KafkaError._ASSIGNMENT_LOST, KafkaError._STATE}
)  # fmt: skip


class FetchedRecords(NamedTuple):
    """Fetched committed records, and the offsets at which partitions currently end."""

    records: list[RawRecord]
    ends: dict[PartitionId, int]


def member_config(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """The configuration of a group consumer of committed records that commits offsets itself."""
    return {
        **settings.librdkafka(),
        "group.id": group,
        "partition.assignment.strategy": "cooperative-sticky",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 1000,
    }


class SharedLog:
    """A consumer-group member on event topics, for one thread.

    Args:
        begin: returns the start offsets of new partitions; called in the rebalance.
        leave: called in the rebalance with removed partitions: (partitions, whether offsets can still be committed).
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        topics: Iterable[str],
        *,
        begin: Callable[[Consumer, Collection[PartitionId]], Mapping[PartitionId, int]],
        leave: Callable[[Collection[PartitionId], bool], None],
    ) -> None:
        self._begin, self._leave, self._settings, self._group = begin, leave, settings, group
        self._new: dict[PartitionId, int] = {}
        self._held: set[PartitionId] = set()
        self._rebalanced: set[PartitionId] = set()
        self.trouble = ""
        self.is_unsure = False
        """Whether an asynchronous commit has failed."""
        config = {**member_config(settings, group), "error_cb": self._error, "on_commit": self._committed}
        self._consumer = Consumer(config, logger=QuietLog("reaction"))
        self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    @property
    def held(self) -> frozenset[PartitionId]:
        """The partitions assigned to this member."""
        return frozenset(self._held)

    def fetch(self, limit: int, wait: float) -> FetchedRecords:
        """Waits for the first record, then returns the available ones, of partitions held all the while.

        Raises:
            InfrastructureError: a topic was deleted, or no longer holds the next offset. Fenced: this member must end.
        """
        self._serve()
        self._rebalanced.clear()
        first = self._consumer.poll(wait)
        if first is None:
            return FetchedRecords([], {})
        rest = self._consumer.consume(limit - 1, 0) if limit > 1 else []
        usable = self._held - self._rebalanced - self._new.keys()
        records, others = split([first, *rest])
        packed = [message for message in others if is_packed(message) and _place_of(message) in usable]
        records += map(raw, unpacked(self._settings.librdkafka(), self._consumer, packed))
        ends = {place: offset for message in others for place, offset in self._end_of(message)}
        if records or ends:
            self.trouble = ""
        return FetchedRecords(
            [record for record in records if (record.topic, record.partition) in usable],
            {place: offset for place, offset in ends.items() if place in usable},
        )

    def pause(self, places: Collection[PartitionId]) -> None:
        """Pauses reading of these partitions."""
        self._consumer.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Collection[PartitionId]) -> None:
        """Resumes reading of these partitions."""
        self._consumer.resume([TopicPartition(*place) for place in places])

    def commit(self, offsets: Mapping[PartitionId, tuple[int, str]], *, wait: bool) -> bool:
        """Commits offsets; False if the partitions belong to another member, or no broker answers.

        Args:
            offsets: each with a note (offset metadata) for the next owner. wait: for the broker's answer.
        """
        if not offsets:
            return True
        places = [TopicPartition(t, p, offset, note) for (t, p), (offset, note) in offsets.items()]
        try:
            if wait:
                found = self._consumer.commit(offsets=places, asynchronous=False) or []
                return not any(tp.error for tp in found)
            self._consumer.commit(offsets=places, asynchronous=True)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_OURS:
                self.trouble = str(translated(error, doing="committing offsets"))
            return False
        return True

    def close(self) -> None:
        """Leaves the group; `leave` is called with the partitions still held."""
        self._consumer.close()

    def _serve(self) -> None:
        """Starts reading new partitions; records fetched before the `seek` are dropped."""
        for (topic, partition), offset in list(self._new.items()):
            try:
                self._consumer.seek(TopicPartition(topic, partition, offset))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise translated(error, doing=f"reading {topic}[{partition}]@{offset}") from error
                continue
            del self._new[topic, partition]
            self._consumer.resume([TopicPartition(topic, partition)])

    def _end_of(self, message: KafkaMessage) -> list[tuple[PartitionId, int]]:
        error = message.error()
        place = _place_of(message)
        if error is None:
            return []
        if error.code() == KafkaError._PARTITION_EOF:
            return [(place, message.offset() or 0)]
        if error.fatal():
            raise Fenced(f"the consumer of {place[0]} failed: {error}")
        if error.code() in _OUT_OF_RANGE:
            raise InfrastructureError(
                f"{place[0]}[{place[1]}] does not hold what comes next: {error.str()}; it was trimmed or recreated "
                f"before this was done. To continue elsewhere: leftfold reactions begin NAME --since TIME"
            )
        if error.code() in NOT_ALLOWED:
            raise translated(error, doing=f"reading {place[0]}" if place[0] else f"joining group {self._group}")
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise InfrastructureError(f"{place[0]}: {error.str()}; was the topic deleted? see: leftfold check")
        return []

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._rebalanced.update(places)
        offsets = self._begin(consumer, places) if places else {}
        for tp in partitions:
            tp.offset = offsets[tp.topic, tp.partition]
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        self._new.update(offsets)
        self._held.update(places)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=True)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=False)

    def _removed(self, consumer: Consumer, partitions: list[TopicPartition], *, ours: bool) -> None:
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._rebalanced.update(places)
        self._leave(places, ours)
        self._held.difference_update(places)
        for place in places:
            self._new.pop(place, None)
        consumer.incremental_unassign(partitions)

    def _error(self, error: KafkaError) -> None:
        self.trouble = f"{error.str()} ({error.name()})"

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self.is_unsure = self.is_unsure or error is not None
        if error is not None and error.code() not in _NOT_OURS:
            self.trouble = f"committing offsets: {error.str()} ({error.name()})"


def _place_of(message: KafkaMessage) -> PartitionId:
    return message.topic() or "", message.partition() or 0
