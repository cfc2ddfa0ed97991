"""What consumer groups of a cluster have committed: how far those who listen to events have come."""

from __future__ import annotations

import re
from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from leftfold import names
from leftfold.kafka.cluster import Cluster
from leftfold.position import Position

__all__ = ["Groups"]

_LISTENERS = re.compile(r"leftfold\.[^.]+\.(?P<name>[^.]+)\.(?P<kind>router|reaction)")
_KINDS = {"router": "process", "reaction": "reaction"}


class Groups(Cluster):
    """A Cluster that knows groups, too; it raises what a Cluster raises."""

    def committed(self, group: str, topics: Iterable[str]) -> Position:
        """What a group has committed in these topics; a partition in which it has not is left out.

        A group commits nothing where it has read nothing, and brokers forget one that had no member for a week.
        """
        wanted, doing = set(topics), f"asking what {group} has committed"
        asked = self._asked(
            doing,
            lambda: self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout
            ),
        )
        found: dict[str, dict[int, int]] = {}
        for place in self._answer(doing, asked[group]).topic_partitions:
            if place.topic in wanted and place.offset >= 0:
                found.setdefault(place.topic, {})[place.partition] = place.offset
        return Position(found)

    def listeners(self, topic: str) -> dict[str, dict[int, int]]:
        """How far each `process NAME` and `reaction NAME` has read a topic of events; who never did is left out.

        Two Apps may have processes of one name; then the lower offset counts.
        """
        found: dict[str, dict[int, int]] = {}
        for group in self._groups(self._timeout):
            named = _LISTENERS.fullmatch(group)
            offsets = self.committed(group, [topic]).offsets.get(topic) if named else None
            if named and offsets:
                who = f"{_KINDS[named['kind']]} {named['name']}"
                others = found.get(who, offsets)
                found[who] = {p: min(offsets.get(p, 0), others.get(p, 0)) for p in offsets.keys() | others.keys()}
        return found

    def move(self, app: str, process: str, to: Position) -> None:
        """Has the routers of a process begin at these offsets when they start; none may be at work.

        Raises:
            InfrastructureError: one is, or no broker answers.
        """
        group, doing = names.group(app, f"{process}.router"), f"moving the routers of {process}"
        places = [TopicPartition(t, p, offset) for t, offsets in to.offsets.items() for p, offset in offsets.items()]
        asked = self._asked(
            doing,
            lambda: self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, places)], request_timeout=self._timeout
            ),
        )
        for future in asked.values():
            self._answer(doing, future)
