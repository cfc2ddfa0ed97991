"""Reads and sets the committed offsets of consumer groups: of process managers, reactions and streams."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import QuietLog, committed_offsets
from leftfold.model.position import Position

__all__ = ["Groups", "MemberOfGroup", "StreamGroups"]

_LISTENERS = re.compile(r"leftfold\.[^.]+\.(?P<name>[^.]+)\.(?P<kind>router|reaction)")
_STREAMS = re.compile(r"leftfold\.(?P<app>[^.]+)\.(?P<name>[^.]+)\.stream(?P<generations>(\.\d+-[0-9a-f]+)*)")
_KINDS = {"router": "process", "reaction": "reaction"}


class MemberOfGroup(NamedTuple):
    """A member of a consumer group: its id, the address of its machine, and its partitions by topic."""

    id: str
    host: str
    partitions: Mapping[str, list[int]]


class StreamGroups(NamedTuple):
    """The consumer groups of a user's stream.

    `current` has the groups with members and their member counts, or else the latest group. `former` are groups of
    generations that are no longer written.
    """

    current: dict[str, int]
    former: tuple[str, ...]

    @property
    def running(self) -> int:
        """The number of running processes."""
        return sum(self.current.values())


class Groups(ClusterAdmin):
    """A ClusterAdmin with operations on consumer groups; it raises the same errors."""

    def committed(self, group: str, topics: Iterable[str]) -> Position:
        """The committed offsets of a group in these topics; partitions without one are left out.

        A group commits nothing where it has read nothing, and brokers delete the offsets of a group that had no member
        for a week.
        """
        doing = f"asking what {group} has committed"
        places = [
            TopicPartition(topic, p) for topic, count in self.partition_counts(topics).items() for p in range(count)
        ]
        if not places:
            return Position()
        config: dict[str, Any] = {
            **self._settings.librdkafka(),
            "group.id": group,
            # Offsets within open transactions count as not committed, so they are not waited for.
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "socket.timeout.ms": int(1000 * self._timeout) + 1500,
        }
        with closing(Consumer(config, logger=QuietLog("groups"))) as consumer:  # it does not join the group
            try:
                committed = committed_offsets(consumer, places, self._timeout)
            except KafkaException as error:
                raise self._translated(error, doing) from error
        return Position.of({(place.topic, place.partition): place.offset for place in committed if place.offset >= 0})

    def members(self) -> dict[str, list[MemberOfGroup]]:
        """All consumer groups with their members."""
        return {
            group.id: [
                MemberOfGroup(one.id, one.client_host, _assigned(one.assignment or b"")) for one in group.members
            ]
            for group in self._listed_groups()
        }

    def streams(self) -> dict[tuple[str, str], StreamGroups]:
        """The consumer groups of streams, by App and stream name."""
        members = self.groups()
        named = [one for group in members if (one := _STREAMS.fullmatch(group))]
        by_stream: dict[tuple[str, str], list[str]] = {}
        for one in sorted(named, key=_age):
            by_stream.setdefault((one["app"], one["name"]), []).append(one[0])
        found: dict[tuple[str, str], StreamGroups] = {}
        for stream, groups in by_stream.items():
            current = [group for group in groups if members[group]] or groups[-1:]
            former = tuple(group for group in groups if group not in current)
            found[stream] = StreamGroups({group: members[group] for group in current}, former)
        return found

    def listeners(self, topic: str) -> dict[str, dict[int, int]]:
        """The offsets that each `process NAME`, `reaction NAME` and `stream NAME` has committed in a topic.

        A consumer that never read the topic is left out. Two Apps may have processes of the same name; then the lower
        offset counts.
        """
        found: dict[str, dict[int, int]] = {}
        for (_, stream), groups in self.streams().items():
            committed = [self.committed(group, [topic]).offsets.get(topic) for group in groups.current]
            # A stream that has just restarted with new generations has committed nothing; the former groups show
            # whether it reads the topic.
            if any(committed) or any(self.committed(group, [topic]).offsets for group in groups.former):
                for offsets in committed:
                    _lower(found, f"stream {stream}", offsets or {})
        for group in self.groups():
            named = _LISTENERS.fullmatch(group)
            offsets = self.committed(group, [topic]).offsets.get(topic) if named else None
            if named and offsets:
                _lower(found, f"{_KINDS[named['kind']]} {named['name']}", offsets)
        return found

    def set(self, group: str, to: Position) -> None:
        """Sets the committed offsets of a group; none of its members may be running.

        Raises:
            InfrastructureError: one is running, or no broker answers.
        """
        places = [TopicPartition(*place, offset) for place, offset in to.by_partition().items()]
        # A consumer that has committed may hang in its `close` when the broker dies meanwhile; this call may abort
        # instead, which is acceptable for a short-lived command.
        self._answered(
            f"moving {group}",
            lambda: self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._timeout
            ),
        )


def _age(named: re.Match[str]) -> list[int]:
    """The numbers of the generations that a stream writes; later generations have higher numbers."""
    return [int(id_.partition("-")[0]) for id_ in named["generations"].split(".")[1:]]


def _lower(found: dict[str, dict[int, int]], who: str, offsets: Mapping[int, int]) -> None:
    others = found.get(who, offsets)
    found[who] = {p: min(offsets.get(p, 0), others.get(p, 0)) for p in offsets.keys() | others.keys()}


def _assigned(assignment: bytes) -> dict[str, list[int]]:
    """The partitions in an assignment of Kafka's consumer protocol (ConsumerProtocolAssignment); none of others."""
    found: dict[str, list[int]] = {}
    try:
        (topics,), at = struct.unpack_from(">xxI", assignment), 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">H", assignment, at)
            topic, at = assignment[at + 2 : at + 2 + length].decode(), at + 2 + length
            (count,) = struct.unpack_from(">I", assignment, at)
            found[topic] = sorted(struct.unpack_from(f">{count}i", assignment, at + 4))
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return {}
    return found
