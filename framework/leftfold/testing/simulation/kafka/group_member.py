"""A consumer's membership in its group, in the background: joins, heartbeats and assignments."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

from leftfold.testing.simulation.kafka.client import FOREVER, SimulatedClient
from leftfold.testing.simulation.kafka.group_coordinator import Assignment, Joined, PartitionId, balanced
from leftfold.testing.simulation.kafka.partitions import BrokerError

__all__ = ["Membership", "group_metadata", "read_group_metadata"]

MAGIC = b"CGMDv2:"
UNKNOWN_TOPIC, ILLEGAL_GENERATION, UNKNOWN_MEMBER, ID_REQUIRED = 3, 22, 25, 79
_GRACE = 3.0
"""Seconds that the answer to a sync may take beyond the session timeout."""
_UNCONFIRMED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT})


def group_metadata(group: str, member: str, generation: int) -> bytes:
    """The metadata of a group, in librdkafka's layout."""
    return MAGIC + struct.pack("=i", generation) + group.encode() + b"\0" + member.encode() + b"\0\1"


def read_group_metadata(metadata: bytes) -> tuple[str, str, int]:
    """Group, member and generation from the metadata of a group."""
    (generation,) = struct.unpack_from("=i", metadata, len(MAGIC))
    group, member, _ = metadata[len(MAGIC) + 4 :].split(b"\0", 2)
    return group.decode(), member.decode(), generation


class Membership:
    """The state machine of librdkafka's consumer groups (rdkafka_cgrp.c), for the classic protocol.

    Args:
        rebalance: queues a rebalance for the application: (is an assignment, partitions).
        warn: queues an error for the application: (code, why).

    Attributes:
        generation: of the group as this member knows it, -1 = none. It rises with the answer to a join, before the
            application sees the rebalance. owned: the partitions assigned to the application and not revoked yet.
        is_lost: whether the group has assigned them to other members already.
    """

    def __init__(
        self,
        client: SimulatedClient,
        rebalance: Callable[[bool, list[PartitionId]], None],
        warn: Callable[[int, str], None],
    ) -> None:
        config = client.config
        self._client, self._rebalance, self._warn = client, rebalance, warn
        self.group = str(config.get("group.id", ""))
        self._is_cooperative = "cooperative" in str(config.get("partition.assignment.strategy", ""))
        self._session = float(config.get("session.timeout.ms", 45_000)) / 1000
        self._interval = float(config.get("heartbeat.interval.ms", 3000)) / 1000
        self._patience = float(config.get("max.poll.interval.ms", 300_000)) / 1000
        self.member, self.generation = "", -1
        self.topics: tuple[str, ...] = ()
        self.owned: set[PartitionId] = set()
        self.polled = self._confirmed = client.scheduler.now
        self._is_in = self._is_rejoining = self._is_leaving = self.is_lost = False
        self._asked: tuple[bool, list[PartitionId]] | None = None
        self._next: list[PartitionId] | None = None
        self._round = 0
        self._beats = False
        self._refresh = float(config.get("topic.metadata.refresh.interval.ms", 300_000)) / 1000
        self._counts: dict[str, int] = {}
        self._missed: set[str] = set()
        self._looks = False

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Joins the group, or joins again with other topics."""
        self.topics = topics
        self._look()
        self._join()

    def metadata(self) -> bytes:
        """The group metadata to send offsets of a transaction with."""
        return group_metadata(self.group, self.member, self.generation)

    def settled(self) -> None:
        """Continues after the application has handled the last rebalance."""
        if self._asked is None:
            return
        (is_assignment, places), self._asked = self._asked, None
        if is_assignment:
            self.owned |= set(places)
        else:
            self.owned -= set(places)
            self.is_lost = False
        if self._is_leaving:
            return
        if self._next is not None:
            following, self._next = self._next, None
            self._call(following, is_assignment=True)
        elif self._is_rejoining or not self._is_in:
            self._join()

    def leave(self, done: Callable[[], None]) -> None:
        """Revokes the owned partitions, and sends the coordinator a leave request."""
        self._is_leaving = True
        self._round += 1
        if not self.member:
            done()
            return
        self._send_leave(lambda value: done())
        self.member, self.generation = "", -1

    def _send_leave(self, done: Callable[[Any], None]) -> None:
        member = self.member

        def work(reply: Callable[[Any], None]) -> None:
            self._client.cluster.group(self.group).leave(member)
            reply(None)

        self._client.ask("leave", ("group", self.group), work, done, 5.0)

    def _look(self) -> None:
        """Reads the topics' metadata: warns once of missing ones, and joins again when partitions were added."""
        known = self._client.cluster.topics
        counts = {topic: len(known[topic].partitions) for topic in self.topics if topic in known}
        for topic in self.topics:
            if topic in known:
                self._missed.discard(topic)
            elif topic not in self._missed:
                self._missed.add(topic)
                self._warn(UNKNOWN_TOPIC, topic)
        before, self._counts = self._counts, counts
        if not self._looks:
            self._looks = True
            self._client.later(self._refresh, self._look_again)
        elif counts != before and self._asked is None:
            if counts:
                self._join()
            elif self.owned:
                self.is_lost = True
                self._call(sorted(self.owned), is_assignment=False)

    def _look_again(self) -> None:
        if not self._is_leaving:
            self._look()
            self._client.later(self._refresh, self._look_again)

    def _join(self) -> None:
        """Sends a join request for the next generation."""
        if self._is_leaving or not any(topic in self._client.cluster.topics for topic in self.topics):
            return
        if not self._is_cooperative and self.owned:
            # An eager member gives up all partitions first.
            self._is_rejoining = True
            self._call(sorted(self.owned), is_assignment=False)
            return
        self._is_rejoining, self._is_in = False, False
        self._round += 1
        current, client = self._round, self._client

        def work(reply: Callable[[Any], None]) -> None:
            client.cluster.group(self.group).join(
                self.member, client.name, self.topics, frozenset(self.owned), self._session, self._patience, reply
            )

        def done(value: Any) -> None:
            if current != self._round:
                return
            if isinstance(value, BrokerError) and value.code == ILLEGAL_GENERATION:
                self._lose(forget=False)
            elif isinstance(value, BrokerError):
                if value.code == UNKNOWN_MEMBER:
                    self.member = ""
                client.later(0.05, lambda: self._join() if current == self._round else None)
            elif isinstance(value, Joined):
                self.generation, self._confirmed = value.generation, client.scheduler.now
                self._sync(value, current)
            else:
                _, self.member = value
                if self.owned:
                    # A member that needs a new id was removed, and its partitions are assigned to others.
                    self._lose(forget=False)
                else:
                    self._join()

        client.ask("join", ("group", self.group), work, done, FOREVER)
        self._begin_beats()

    def _sync(self, joined: Joined, current: int) -> None:
        client, generation = self._client, joined.generation
        assignments: dict[str, Assignment] = {}
        if joined.members:
            wanted = {topic for topics, _ in joined.members.values() for topic in topics}
            known = client.cluster.topics
            counts = {topic: len(known[topic].partitions) for topic in wanted if topic in known}
            assignments = balanced(joined.members, counts)

        def work(reply: Callable[[Any], None]) -> None:
            client.cluster.group(self.group).sync(self.member, generation, assignments, reply)

        def done(value: Any) -> None:
            if current != self._round:
                return
            if isinstance(value, BrokerError) and value.code in (ILLEGAL_GENERATION, UNKNOWN_MEMBER):
                self._lose(forget=value.code == UNKNOWN_MEMBER)
            elif isinstance(value, BrokerError):
                self._join()
            else:
                self._confirmed, self._is_in = client.scheduler.now, True
                self._take(value)

        client.ask("sync", ("group", self.group), work, done, self._session + _GRACE)

    def _take(self, assignment: Assignment) -> None:
        """Applies an assignment: revokes partitions first, then assigns new ones, then joins another round."""
        added = sorted(assignment - self.owned)
        removed = sorted(self.owned - assignment)
        if removed:
            self._is_rejoining = True
            self._next = added or None
            self._call(removed, is_assignment=False)
        else:
            self._call(added, is_assignment=True)

    def _call(self, places: list[PartitionId], *, is_assignment: bool) -> None:
        self._asked = is_assignment, places
        self._rebalance(is_assignment, places)

    def _lose(self, *, forget: bool) -> None:
        """Loses the owned partitions: the group removed this member, whose id or generation is dropped."""
        if forget:
            self.member = ""
        else:
            self.generation = -1
        if self._asked is not None:
            return  # a rebalance that the application has not seen comes first; the next heartbeat fails again
        self._round += 1
        self._is_in, self._next = False, None
        self.is_lost = bool(self.owned)
        if self.owned:
            self._is_rejoining = True
            self._call(sorted(self.owned), is_assignment=False)
        else:
            self._join()

    def _begin_beats(self) -> None:
        if not self._beats:
            self._beats = True
            self._client.later(self._interval, self._beat)

    def _beat(self) -> None:
        """Sends one heartbeat, and checks the deadlines of the session and of polls."""
        client, now = self._client, self._client.scheduler.now
        if self._is_leaving or client.is_closed:
            return
        client.later(self._interval, self._beat)
        if now - self._confirmed > self._session and self._is_in:
            self._lose(forget=True)
            return
        if not self._is_in:
            if now - self._confirmed > self._session:
                self.member = ""
            return
        if now - self.polled > self._patience:
            self._warn(KafkaError._MAX_POLL_EXCEEDED, "the application does not poll")
            self._send_leave(lambda value: None)
            self._lose(forget=True)
            return
        current, generation, member = self._round, self.generation, self.member

        def work(reply: Callable[[Any], None]) -> None:
            client.cluster.group(self.group).heartbeat(member, generation)
            reply(None)

        def done(value: Any) -> None:
            if current != self._round or self._is_leaving:
                return
            if not isinstance(value, BrokerError):
                self._confirmed = client.scheduler.now
            elif value.code in (ILLEGAL_GENERATION, UNKNOWN_MEMBER):
                self._lose(forget=value.code == UNKNOWN_MEMBER)
            elif value.code not in _UNCONFIRMED:
                self._confirmed = client.scheduler.now
                if self._asked is None:
                    self._join()
                else:
                    self._is_rejoining = True

        client.ask("heartbeat", ("group", self.group), work, done, self._interval)
