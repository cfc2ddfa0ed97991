"""The membership of a process in a consumer group: rebalances, fetched messages, and committed offsets."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import NOT_ALLOWED, OUT_OF_RANGE, QuietLog, code_of, translated
from leftfold.kafka.records import KafkaMessage, is_packed, unpacked
from leftfold.ports.protocols import PartitionId

__all__ = ["GroupMember", "member_config"]


_NEVER = 1 << 63
_NOT_OURS = frozenset(
    {KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError._NO_OFFSET, KafkaError._ASSIGNMENT_LOST, KafkaError._STATE}
)  # fmt: skip
_error = Message.error
_log = logging.getLogger(__name__)
_METADATA = b"CGMDv2:"
"""The prefix of librdkafka's group metadata; the group generation follows in the machine's byte order."""


def member_config(config: Mapping[str, Any], group: str) -> dict[str, Any]:
    """The configuration of a group consumer of committed records that commits offsets itself.

    Args:
        config: connection settings, and settings that differ from those here.
    """
    return {
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
    }


class GroupMember:
    """A consumer-group member for one thread, cooperative and read_committed.

    New partitions (`new`) stay paused until they are served. `ends` are the offsets at which served partitions ended in
    the last fetch, if it `is_reporting`.

    Args:
        leave: called in the rebalance with removed partitions: (partitions, whether offsets can still be committed).
        gap: the error to raise when a served partition no longer holds its next offset: (topic, partition, offset).
        client: the client's name in log lines.
        is_reporting: whether `ends` are known, and errors of the client are in `trouble` instead of its log: why no
            broker can be reached, or a commit has failed.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        group: str,
        topics: Iterable[str],
        leave: Callable[[list[PartitionId], bool], None],
        gap: Callable[[str, int, int], LeftfoldError],
        *,
        client: str = "worker",
        is_reporting: bool = False,
    ) -> None:
        self._group, self._leave, self._gap = group, leave, gap
        self.new: set[PartitionId] = set()
        self.ends: dict[PartitionId, int] = {}
        self.trouble = ""
        self.committed: dict[PartitionId, tuple[int, str]] = {}
        """The offset and metadata last committed of each partition, as far as this member knows."""
        self._is_unsure = False
        """Whether a commit without waiting has failed."""
        self._served: dict[PartitionId, int] = {}
        self._assigned_at: dict[PartitionId, int] = {}
        self._failure: LeftfoldError | None = None
        self._is_reassigned = False
        """Whether a partition was assigned outside a rebalance; then librdkafka may report a loss as a revocation."""
        self._rebalanced: set[PartitionId] = set()
        self._pending: list[KafkaMessage] = []
        self._config = {name: value for name, value in config.items() if name != "group.instance.id"}
        reports: dict[str, Any] = {}
        if is_reporting:
            reports = {"enable.partition.eof": True, "reconnect.backoff.max.ms": 1000}
            reports |= {"error_cb": self._troubled, "on_commit": self._committed}
        self.consumer = Consumer({**member_config(config, group), **reports}, logger=QuietLog(client))
        self.consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    @property
    def served(self) -> frozenset[PartitionId]:
        """The partitions that this member fetches."""
        return frozenset(self._served)

    def fetch(self, limit: int, wait: float) -> list[KafkaMessage]:
        """Waits up to `wait` seconds for messages of served partitions; those put back come first.

        Messages of partitions that were not served all the while are dropped. Messages become records only when they
        are processed, since many records at once outgrow the CPU cache.

        Raises:
            InfrastructureError: the topic was deleted. Fenced: this member must end. LeftfoldError: from `gap`;
                messages fetched before the gap are returned first.
        """
        self._rebalanced.clear()
        self.ends.clear()
        if self._failure is not None:
            return self._fetched_before(limit)
        first = self.consumer.poll(0 if self._pending else wait)
        messages = [first] if first is not None else []
        if first is not None and (room := limit - 1 - len(self._pending)) > 0:
            messages += self.consumer.consume(room, 0)
        if any(map(_error, messages)):
            messages = self._unpacked(messages)
        # `_pending` is read only now: a rebalance in the calls above removes messages from it.
        self._pending += [m for m in messages if self._usable(m)]
        self._is_reassigned = False
        if self._pending or self.ends:
            self.trouble = ""
        return self._fetched_before(limit)

    def _fetched_before(self, limit: int) -> list[KafkaMessage]:
        found, self._pending = self._pending[:limit], self._pending[limit:]
        if self._failure is not None and not found:
            raise self._failure
        return found

    def put_back(self, messages: Iterable[KafkaMessage]) -> None:
        """Keeps unprocessed messages of the last fetch; the next fetch returns them first."""
        self._pending = [*messages, *self._pending]

    def serve(self, place: PartitionId, offset: int) -> bool:
        """Starts fetching a new partition at an offset; False if it cannot be started yet."""
        try:
            self.consumer.seek(TopicPartition(*place, offset))
        except KafkaException as error:
            if code_of(error) != KafkaError._STATE:
                raise
            self._assign_at(place, offset)
            return False
        self.new.discard(place)
        self._forget([place])
        self._served[place] = offset
        self._assigned_at.pop(place, None)
        self.consumer.resume([TopicPartition(*place)])
        return True

    def rewind(self, offsets: Mapping[PartitionId, int]) -> None:
        """Seeks back to these offsets."""
        self._forget(offsets)
        for place, offset in offsets.items():
            self.consumer.seek(TopicPartition(*place, offset))
            self._served[place] = offset

    def forsake(self, place: PartitionId) -> None:
        """Stops serving a partition that is still assigned; it counts as new again."""
        self._served.pop(place, None)
        self._forget([place])
        self.consumer.pause([TopicPartition(*place)])
        self.new.add(place)

    def pause(self, places: Collection[PartitionId]) -> None:
        """Pauses fetching of served partitions."""
        self.consumer.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Collection[PartitionId]) -> None:
        """Resumes fetching of served partitions."""
        self.consumer.resume([TopicPartition(*place) for place in places])

    def commit(self, offsets: Mapping[PartitionId, tuple[int, str]]) -> None:
        """Commits offsets with metadata, outside any transaction.

        Raises:
            KafkaException: this is not a member, or no broker answers.
        """
        if wanted := _positions(offsets):
            self.consumer.commit(offsets=wanted, asynchronous=False)

    def try_commit(self, offsets: Mapping[PartitionId, tuple[int, str]], *, wait: bool) -> bool:
        """Commits offsets with metadata; False if they belong to another member, or no broker answers.

        Args:
            wait: for the broker's answer; otherwise the next `commit_moved` knows of a failure.
        """
        if not offsets:
            return True
        commit: Any = self.consumer.commit  # its overloads want a literal
        try:
            found = commit(offsets=_positions(offsets), asynchronous=not wait)
        except KafkaException as error:
            if code_of(error) not in _NOT_OURS:
                self.trouble = str(translated(error, doing="committing offsets"))
            return False
        return not any(tp.error for tp in found or ())

    def commit_moved(self, offsets: Mapping[PartitionId, tuple[int, str]], *, wait: bool) -> bool:
        """Commits the offsets that differ from those committed last, as `try_commit` does."""
        if self._is_unsure:
            self.committed, self._is_unsure = {}, False
        moved = {place: one for place, one in offsets.items() if one != self.committed.get(place)}
        if is_done := self.try_commit(moved, wait=wait):
            self.committed |= moved
        return is_done

    def metadata(self) -> Any | None:
        """The group metadata for committing offsets in a transaction; None while this is not a member.

        librdkafka may leave a group without notice. Its metadata then has generation -1, and a broker accepts such an
        offset as one from outside the group. The transaction must send exactly the metadata returned here.
        """
        found: Any = self.consumer.consumer_group_metadata()
        return None if _generation(found) < 0 or not self.consumer.memberid() else found

    def close(self) -> None:
        """Leaves the group; `leave` is called with the partitions still owned."""
        self.consumer.close()

    def _forget(self, places: Collection[PartitionId]) -> None:
        """Drops the pending messages of partitions."""
        self._pending = [m for m in self._pending if (m.topic(), m.partition()) not in places]

    def _unpacked(self, messages: list[KafkaMessage]) -> list[KafkaMessage]:
        """The messages, with a stand-in for each batch that cannot be decompressed, of partitions served here."""
        here = self._served.keys() - self._rebalanced
        try:
            return unpacked(
                self._config, self.consumer, [m for m in messages if not is_packed(m) or _partition(m) in here]
            )
        except LeftfoldError as error:
            # The batch is fetched again, and fails again.
            _log.warning("group %s: %s", self._group, error)
            return messages

    def _usable(self, message: Message) -> bool:
        place: Any = (message.topic(), message.partition())  # inline, as it runs for every message
        offset = message.offset() or 0
        is_served = place not in self._rebalanced and offset >= self._served.get(place, _NEVER)
        error = message.error()
        if error is None:
            return is_served
        code, at = error.code(), f"{place[0]}[{place[1]}]@{offset}"
        if code == KafkaError._PARTITION_EOF:
            if is_served:
                self.ends[place] = offset
            return False
        if error.fatal():
            raise Fenced(f"the consumer of {place[0]} failed: {error}")
        if code == KafkaError._BAD_MSG:
            _log.warning("%s holds bytes that are not records: %s", at, error.str())
        if code in OUT_OF_RANGE and message.offset() is None and place in self._served.keys() - self._rebalanced:
            # The log was cut behind its leader's epoch, and no offset is named.
            self._failure = self._gap(place[0], place[1], self._position(place))
        elif code in OUT_OF_RANGE and is_served:
            # New partitions are assigned at 0 before their start offset is known, and a topic need not begin at 0.
            self._failure = self._gap(place[0], place[1], offset)
        if code in NOT_ALLOWED:
            raise translated(error, doing=f"reading {place[0] or 'topics'} in group {self._group}")
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise InfrastructureError(f"{place[0]}: {error.str()}; was the topic deleted? see: leftfold check")
        if code not in OUT_OF_RANGE:
            self.trouble = f"{error.str()} ({error.name()})"
        return False

    def _position(self, place: PartitionId) -> int:
        """The next offset of a served partition."""
        (found,) = self.consumer.position([TopicPartition(*place)])
        return max(found.offset, self._served[place])

    def _assign_at(self, place: PartitionId, offset: int) -> None:
        """Assigns a new partition again, at its start offset.

        A partition that was fetched at 0 before it was paused, and does not hold 0, accepts no `seek`: librdkafka has
        stopped it (rd_kafka_offset_reset). It stays paused.
        """
        if self._assigned_at.get(place) != offset:
            self._assigned_at[place] = offset
            self._is_reassigned = True
            self.consumer.incremental_unassign([TopicPartition(*place)])
            self.consumer.incremental_assign([TopicPartition(*place, offset)])

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = {(tp.topic, tp.partition) for tp in partitions}
        self._rebalanced |= places
        self.new |= places
        for partition in partitions:
            # Without an offset librdkafka first asks the broker for one. Until the answer `seek` fails, and a late
            # answer moves a partition after its `seek` (seen with OFFSET_END: a command was skipped).
            partition.offset = 0
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=not self._is_reassigned)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._removed(consumer, partitions, ours=False)

    def _removed(self, consumer: Consumer, partitions: list[TopicPartition], *, ours: bool) -> None:
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._rebalanced.update(places)
        self._forget(places)
        self._leave(places, ours)
        self.new.difference_update(places)
        for place in places:
            for known in (self._served, self._assigned_at, self.committed):
                known.pop(place, None)
        consumer.incremental_unassign(partitions)

    def _troubled(self, error: KafkaError) -> None:
        self.trouble = f"{error.str()} ({error.name()})"

    def _committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        self._is_unsure = self._is_unsure or error is not None
        if error is not None and error.code() not in _NOT_OURS:
            self.trouble = f"committing offsets: {error.str()} ({error.name()})"


def _positions(offsets: Mapping[PartitionId, tuple[int, str]]) -> list[TopicPartition]:
    return [TopicPartition(*place, offset, metadata) for place, (offset, metadata) in offsets.items()]


def _partition(message: KafkaMessage) -> PartitionId:
    return message.topic() or "", message.partition() or 0


def _generation(metadata: bytes) -> int:
    """The group generation in librdkafka's metadata; 0 if the format is unknown."""
    if not metadata.startswith(_METADATA):
        return 0
    return int.from_bytes(metadata[len(_METADATA) : len(_METADATA) + 4], sys.byteorder, signed=True)
