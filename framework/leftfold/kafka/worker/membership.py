"""The membership of a worker in its consumer group: rebalances, fetched messages, and metadata of committed offsets."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import NOT_ALLOWED, QuietLog, translated
from leftfold.kafka.records import KafkaMessage, is_packed, place, unpacked
from leftfold.model.encoding import number_in

__all__ = ["CLEAN", "Member", "OffsetMetadata", "attempt", "new_token", "read_metadata", "started"]


_NEVER = 1 << 63
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_error = Message.error
_log = logging.getLogger(__name__)
_METADATA = b"CGMDv2:"
"""The prefix of librdkafka's group metadata; the group generation follows in the machine's byte order."""


class Member:
    """A consumer-group member, cooperative and read_committed; new partitions stay paused until they are served.

    Args:
        leave: called in the rebalance with removed partitions: (partitions, whether offsets can still be committed).
    """

    def __init__(
        self, config: Mapping[str, Any], group: str, topic: str, leave: Callable[[list[int], bool], None]
    ) -> None:
        self.topic, self._group, self._leave = topic, group, leave
        self.new: set[int] = set()
        self._served: dict[int, int] = {}
        self._assigned_at: dict[int, int] = {}
        self._gap = ""
        self._rebalanced: set[int] = set()
        self._pending: list[KafkaMessage] = []
        self._config = {name: value for name, value in config.items() if name != "group.instance.id"}
        self.consumer = Consumer(
            {
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Records that retention deleted from a served partition are reported, never skipped.
                "auto.offset.reset": "error",
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
        """Waits up to `wait` seconds for commands of served partitions; those put back come first.

        Messages of partitions that were not served all the while are dropped. Messages become records only when they
        are decided, since many records at once outgrow the CPU cache.

        Raises:
            InfrastructureError: the topic was deleted, or no longer holds the next offset; messages fetched before
                that are returned first. Fenced: this member must end.
        """
        self._rebalanced.clear()
        if self._gap:
            return self._fetched_before(limit)
        first = self.consumer.poll(0 if self._pending else wait)
        messages = [first] if first is not None else []
        if first is not None and (room := limit - 1 - len(self._pending)) > 0:
            messages += self.consumer.consume(room, 0)
        if any(map(_error, messages)):
            messages = self._unpacked(messages)
        # `_pending` is read only now: a rebalance in the calls above removes messages from it.
        self._pending += [m for m in messages if self._usable(m)]
        return self._fetched_before(limit)

    def _fetched_before(self, limit: int) -> list[KafkaMessage]:
        found, self._pending = self._pending[:limit], self._pending[limit:]
        if self._gap and not found:
            raise InfrastructureError(self._gap)
        return found

    def put_back(self, messages: Iterable[KafkaMessage]) -> None:
        """Keeps undecided messages of the last fetch; the next fetch returns them first."""
        self._pending = [*messages, *self._pending]

    def serve(self, partition: int, offset: int) -> bool:
        """Starts fetching a new partition at an offset; False if it cannot be started yet."""
        try:
            self.consumer.seek(TopicPartition(self.topic, partition, offset))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            self._assign_at(partition, offset)
            return False
        self.new.discard(partition)
        self._forget([partition])
        self._served[partition] = offset
        self._assigned_at.pop(partition, None)
        self.consumer.resume([TopicPartition(self.topic, partition)])
        return True

    def rewind(self, offsets: Mapping[int, int]) -> None:
        """Seeks back to these offsets."""
        self._forget(offsets)
        for partition, offset in offsets.items():
            self.consumer.seek(TopicPartition(self.topic, partition, offset))
            self._served[partition] = offset

    def forsake(self, partition: int) -> None:
        """Stops serving a partition that is still assigned; it counts as new again."""
        self._served.pop(partition, None)
        self._forget([partition])
        self.consumer.pause([TopicPartition(self.topic, partition)])
        self.new.add(partition)

    def commit(self, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commits offsets with metadata, outside any transaction."""
        wanted = [TopicPartition(self.topic, p, offset, metadata) for p, (offset, metadata) in offsets.items()]
        if wanted:
            self.consumer.commit(offsets=wanted, asynchronous=False)

    def metadata(self) -> Any | None:
        """The group metadata for committing offsets in a transaction; None while this is not a member.

        librdkafka may leave a group without notice. Its metadata then has generation -1, and a broker accepts such an
        offset as one from outside the group. The transaction must send exactly the metadata returned here.
        """
        found: Any = self.consumer.consumer_group_metadata()
        return None if _generation(found) < 0 or not self.consumer.memberid() else found

    def committed(self, partitions: Iterable[int], timeout: float) -> list[TopicPartition]:
        """The stable committed offsets with their metadata."""
        return self.consumer.committed([TopicPartition(self.topic, p) for p in partitions], timeout=timeout)

    def close(self) -> None:
        """Leaves the group; `leave` is called with the partitions still owned."""
        self.consumer.close()

    def _forget(self, partitions: Collection[int]) -> None:
        """Drops the pending messages of partitions."""
        self._pending = [m for m in self._pending if m.partition() not in partitions]

    def _unpacked(self, messages: list[KafkaMessage]) -> list[KafkaMessage]:
        """The messages, with a stand-in for each batch that cannot be decompressed, of partitions served here."""
        here = self._served.keys() - self._rebalanced
        try:
            return unpacked(
                self._config, self.consumer, [m for m in messages if not is_packed(m) or m.partition() in here]
            )
        except LeftfoldError as error:
            # The batch is fetched again, and fails again.
            _log.warning("%s cannot be read: %s", self.topic, error)
            return messages

    def _usable(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            partition, offset = place(message)
            return partition not in self._rebalanced and offset >= self._served.get(partition, _NEVER)
        if error.fatal():
            raise Fenced(f"the consumer of {self.topic} failed: {error}")
        if error.code() == KafkaError._BAD_MSG:
            _log.warning("%s[%d]@%d holds bytes that are not records: %s", self.topic, *place(message), error.str())
        if error.code() in _OUT_OF_RANGE:
            self._note_gap(*place(message))
        if error.code() in NOT_ALLOWED:
            raise translated(error, doing=f"reading {self.topic} in group {self._group}")
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise InfrastructureError(f"{self.topic}: {error.str()}; was the topic deleted? see: leftfold check")
        return False

    def _note_gap(self, partition: int, offset: int) -> None:
        """Has `fetch` raise if a served partition no longer holds its next offset.

        New partitions are assigned at 0 before their start offset is known, and a topic need not begin at 0.
        """
        if partition not in self._rebalanced and offset >= self._served.get(partition, _NEVER):
            self._gap = (
                f"{self.topic}[{partition}] does not hold offset {offset}, which comes next: retention took it, or the "
                f"topic was cut or made again. This worker ends, and the next one reports how many commands were lost"
            )

    def _assign_at(self, partition: int, offset: int) -> None:
        """Assigns a new partition again, at its start offset.

        A partition that was fetched at 0 before it was paused, and does not hold 0, accepts no `seek`: librdkafka has
        stopped it (rd_kafka_offset_reset). It stays paused.
        """
        if self._assigned_at.get(partition) != offset:
            self._assigned_at[partition] = offset
            self.consumer.incremental_unassign([TopicPartition(self.topic, partition)])
            self.consumer.incremental_assign([TopicPartition(self.topic, partition, offset)])

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {tp.partition for tp in partitions}
        self._rebalanced |= numbers
        self.new |= numbers
        for partition in partitions:
            # Without an offset librdkafka first asks the broker for one. Until the answer `seek` fails, and a late
            # answer moves a partition after its `seek` (seen with OFFSET_END: a command was skipped).
            partition.offset = 0
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=True)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=False)

    def _removed(self, consumer: Consumer, partitions: list[TopicPartition], *, ours: bool) -> None:
        numbers = [tp.partition for tp in partitions]
        self._rebalanced |= set(numbers)
        self._forget(numbers)
        self._leave(numbers, ours)
        self.new -= set(numbers)
        for number in numbers:
            self._served.pop(number, None)
            self._assigned_at.pop(number, None)
        consumer.incremental_unassign(partitions)


def _generation(metadata: bytes) -> int:
    """The group generation in librdkafka's metadata; 0 if the format is unknown."""
    if not metadata.startswith(_METADATA):
        return 0
    return int.from_bytes(metadata[len(_METADATA) : len(_METADATA) + 4], sys.byteorder, signed=True)


CLEAN = "clean"


@dataclass(frozen=True)
class OffsetMetadata:
    """The metadata of a committed offset: how the last owner left the partition.

    `suspect`: the last owner died before committing anything, so one of the next commands may be a poison pill.
    `attempts`: how often the next command was tried alone.
    """

    token: str
    suspect: bool
    attempts: int


def new_token() -> str:
    """Random metadata for a batch, by which a commit of unknown outcome is recognised."""
    return f"b:{secrets.token_hex(8)}"


def started() -> str:
    """The metadata of a partition that was taken over without progress so far."""
    return "s"


def attempt(number: int) -> str:
    """The metadata written before the `number`-th try of the next command alone."""
    return f"a:{number}"


def read_metadata(metadata: str | None) -> OffsetMetadata:
    """Parses offset metadata; an unknown value counts as the end of a batch."""
    text = metadata or ""
    if text == started():
        return OffsetMetadata(text, suspect=True, attempts=0)
    if text.startswith("a:") and (attempts := number_in(text[2:])) is not None:
        return OffsetMetadata(text, suspect=True, attempts=attempts)
    return OffsetMetadata(text, suspect=False, attempts=0)
