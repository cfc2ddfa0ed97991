"""What consumer groups of a cluster have committed: how far those who listen to events have come."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import QuietLog
from leftfold.model import keys as names
from leftfold.model.position import Position

__all__ = ["Groups", "StreamGroups"]

_LISTENERS = re.compile(r"leftfold\.[^.]+\.(?P<name>[^.]+)\.(?P<kind>router|reaction)")
_STREAMS = re.compile(r"leftfold\.(?P<app>[^.]+)\.(?P<name>[^.]+)\.stream(?P<generations>(\.\d+-[0-9a-f]+)*)")
_KINDS = {"router": "process", "reaction": "reaction"}


class StreamGroups(NamedTuple):
    """The groups of a stream of a user's: those at work with how many members each has, else the one that was last.

    `former` are of generations that nobody keeps any more.
    """

    current: dict[str, int]
    former: tuple[str, ...]

    @property
    def running(self) -> int:
        """How many processes are at work."""
        return sum(self.current.values())


class Groups(ClusterAdmin):
    """A ClusterAdmin that knows groups, too; it raises what a ClusterAdmin raises."""

    def committed(self, group: str, topics: Iterable[str]) -> Position:
        """What a group has committed in these topics; a partition in which it has not is left out.

        A group commits nothing where it has read nothing, and brokers forget one that had no member for a week.
        """
        doing = f"asking what {group} has committed"
        places = [
            TopicPartition(topic, p) for topic, count in self.partition_counts(topics).items() for p in range(count)
        ]
        if not places:
            return Position()
        found: dict[str, dict[int, int]] = {}
        with self._member_of(group) as consumer:
            try:
                committed = consumer.committed(places, timeout=self._timeout)
            except KafkaException as error:
                raise self._translated(error, doing) from error
        for place in committed:
            if place.error is not None:
                raise self._translated(place.error, doing)
            if place.offset >= 0:
                found.setdefault(place.topic, {})[place.partition] = place.offset
        return Position(found)

    def streams(self) -> dict[tuple[str, str], StreamGroups]:
        """The groups of streams, by App and name of the stream."""
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
        """How far each `process NAME`, `reaction NAME` and `stream NAME` has read a topic; who never did is left out.

        Two Apps may have processes of one name; then the lower offset counts.
        """
        found: dict[str, dict[int, int]] = {}
        for (_, stream), groups in self.streams().items():
            reached = [self.committed(group, [topic]).offsets.get(topic) for group in groups.current]
            # One that has just begun anew has committed nothing, and those before tell what it reads.
            if any(reached) or any(self.committed(group, [topic]).offsets for group in groups.former):
                for offsets in reached:
                    _lower(found, f"stream {stream}", offsets or {})
        for group in self.groups():
            named = _LISTENERS.fullmatch(group)
            offsets = self.committed(group, [topic]).offsets.get(topic) if named else None
            if named and offsets:
                _lower(found, f"{_KINDS[named['kind']]} {named['name']}", offsets)
        return found

    def move(self, app: str, process: str, to: Position) -> None:
        """Has the routers of a process begin at these offsets when they start; none may be at work.

        Raises:
            InfrastructureError: one is, or no broker answers.
        """
        self.set(names.group(app, f"{process}.router"), to)

    def set(self, group: str, to: Position) -> None:
        """Has a group go on at these offsets; none of its members may be at work.

        Raises:
            InfrastructureError: one is, or no broker answers.
        """
        doing = f"moving {group}"
        places = [TopicPartition(t, p, offset) for t, offsets in to.offsets.items() for p, offset in offsets.items()]
        # A consumer that has committed may hang in its `close` when the broker dies meanwhile; this may abort instead,
        # which a command that ends at once can bear.
        asked = self._asked(
            doing,
            lambda: self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._timeout
            ),
        )
        for future in asked.values():
            self._answer(doing, future)

    @contextmanager
    def _member_of(self, group: str) -> Iterator[Consumer]:
        """A consumer that speaks for the group without joining it."""
        # Offsets within open transactions count as not committed, so they are not waited for.
        config = {
            "group.id": group,
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "socket.timeout.ms": int(1000 * self._timeout) + 1500,
        }
        consumer = Consumer({**self._settings.librdkafka(), **config}, logger=QuietLog("groups"))
        try:
            yield consumer
        finally:
            consumer.close()


def _age(named: re.Match[str]) -> list[int]:
    """The numbers of the generations that a stream writes: the later they were made, the higher."""
    return [int(id_.partition("-")[0]) for id_ in named["generations"].split(".")[1:]]


def _lower(found: dict[str, dict[int, int]], who: str, offsets: Mapping[int, int]) -> None:
    others = found.get(who, offsets)
    found[who] = {p: min(offsets.get(p, 0), others.get(p, 0)) for p in offsets.keys() | others.keys()}
