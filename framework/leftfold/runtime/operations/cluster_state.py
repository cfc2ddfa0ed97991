"""What the brokers say about the topics and groups of an App, each question asked once for all partitions.

`status`, `doctor`, `top`, the console and `/metrics` look through it, so what they cost does not grow with partitions.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.groups import Groups, MemberOfGroup, StreamGroups
from leftfold.kafka.administration.states import last_checkpoints
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkLog, OffsetRange, read_to
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import kafka_settings, open_bulk

__all__ = ["ClusterState", "topics_of_members"]

Offsets: TypeAlias = dict[str, Mapping[int, int]]
Place: TypeAlias = tuple[str, int]
_LETTERS = 2000
"""Most offsets of each partition of dead letters that are read."""
_PATIENCE, _POLLS = 5.0, 20


def topics_of_members(app: App) -> list[str]:
    """The topics whose offsets and groups say how far the members of an App are."""
    worked = {d.name: d.version for d in app.deciders} | {p.name: p.version for p in app.processes}
    read = [p.categories for p in app.processes] + [r.categories for r in app.reactions]
    read += [s.categories for s in app.streams] + [v.categories for v in app.views]
    categories = [*(d.name for d in app.deciders), *chain.from_iterable(read)]
    found = [
        *map(names.events, categories),
        *map(names.commands, worked),
        *(names.state(name, version) for name, version in worked.items()),
        *map(names.dead, (*worked, *(one.name for one in app.reactions))),
    ]
    return list(dict.fromkeys(found))


class ClusterState:
    """The offsets, groups and last records of topics at one time; every answer is kept.

    Args:
        kafka: the brokers; None = those of the settings.
        archive: the archive with events that topics have lost; '' = none.
        topics: those that are asked for together; others are asked for when they are needed.
    """

    def __init__(self, kafka: str | KafkaSettings | None, archive: str = "", topics: Iterable[str] = ()) -> None:
        self._kafka, self._archive, self._wanted = kafka, archive, tuple(topics)
        self._starts: Offsets = {}
        self._ends: Offsets = {}
        self._stable: Offsets = {}
        self._ids: dict[str, str] = {}
        self._letters: dict[str, list[RawRecord]] = {}
        self._checkpoints: dict[str, dict[int, Any]] = {}
        self._times: dict[OffsetRange, int | None] = {}

    @cached_property
    def settings(self) -> KafkaSettings:
        """How the brokers are reached."""
        return kafka_settings(self._kafka)

    @cached_property
    def admin(self) -> Groups:
        """The client that asks."""
        return Groups(self.settings)

    @cached_property
    def topics(self) -> dict[str, int]:
        """Every topic that this login may see, with its number of partitions."""
        return self.admin.topics()

    @cached_property
    def groups(self) -> dict[str, list[MemberOfGroup]]:
        """Every consumer group with its members."""
        return self.admin.members()

    @cached_property
    def streams(self) -> dict[tuple[str, str], StreamGroups]:
        """The groups of streams, by App and stream."""
        return self.admin.streams()

    def members(self, group: str) -> int:
        """The number of members of a group."""
        return len(self.groups.get(group, ()))

    def assigned(self, *groups: str) -> list[dict[str, Any]]:
        """The members of groups with their partitions, each as a JSON object."""
        return [{"group": group, **member._asdict()} for group in groups for member in self.groups.get(group, ())]

    def there(self, topics: Iterable[str]) -> list[str]:
        """Those of some topics that exist."""
        return [topic for topic in topics if topic in self.topics]

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that every partition still holds; missing topics are left out."""
        return self._known(self._starts, topics)

    def ends(self, topics: Iterable[str]) -> Position:
        """The next offset of every partition; missing topics are left out."""
        return self._known(self._ends, topics)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The end of what is committed in every partition; missing topics are left out."""
        return self._known(self._stable, topics)

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic; missing topics are left out."""
        wanted = self.there(topics)
        self._look_at(wanted)
        return {topic: self._ids[topic] for topic in wanted if topic in self._ids}

    def committed(self, group: str, topics: Iterable[str]) -> Position:
        """The committed offsets of a group; partitions without one are left out."""
        return self.admin.committed(group, self.there(topics))

    def letters(self, topic: str) -> list[RawRecord]:
        """The last committed records of a topic of dead letters, without their values, of which a flood has too many.

        Those of all such topics are read together.
        """
        self._look_at([topic])
        # What reactions park is in topics of this name, too, but without commands of that name.
        others = [one for one in self._ends if self._is_of_commands(one)]
        self._read_letters([one for one in self.there((topic, *others)) if one not in self._letters])
        return self._letters.get(topic, [])

    def checkpoints(self, topic: str) -> dict[int, Any]:
        """The last changelog checkpoint of each partition of a state topic; all state topics are read together."""
        self._look_at([topic])
        unread = [one for one in self._ends if ".state.v" in one and one not in self._checkpoints]
        if unread:
            found = last_checkpoints(self.settings, self.starts(unread), self.stable_ends(unread))
            self._checkpoints |= {one: found.get(one, {}) for one in unread}
        return self._checkpoints.get(topic, {})

    def seconds_behind(self, position: Position) -> float:
        """Age in seconds of the oldest record behind a position; 0 when there is none.

        A position before a topic's end need not miss a record: transaction markers use offsets too, and records of an
        open transaction are not readable yet.

        Raises:
            LogGap: the next record is neither in its topic nor in the archive.
            InfrastructureError: the log cannot be read, or the archive is broken or belongs to another topic.
        """
        behind = [
            OffsetRange(topic, partition, start, end)
            for topic, ends in self.stable_ends(position.offsets).offsets.items()
            for partition, end in ends.items()
            if (start := position.next_offset(topic, partition)) < end
        ]
        self._find_times([part for part in behind if part not in self._times])
        times = [found for part in behind if (found := self._times[part]) is not None]
        return max(0.0, time.time() - min(times) / 1000) if times else 0.0

    def _is_of_commands(self, topic: str) -> bool:
        name = topic.removesuffix(names.dead(""))
        return name != topic and names.commands(name) in self.topics

    def _known(self, offsets: Offsets, topics: Iterable[str]) -> Position:
        wanted = self.there(topics)
        self._look_at(wanted)
        return Position({topic: offsets[topic] for topic in wanted})

    def _look_at(self, topics: Iterable[str]) -> None:
        """Asks for all offsets of topics that are not known yet, and of those that are asked for together."""
        if all(topic in self._ends or topic not in self.topics for topic in topics):
            return
        new = [topic for topic in self.there(dict.fromkeys((*self._wanted, *topics))) if topic not in self._ends]
        self._ids |= self.admin.identities(new)
        # Stable ends first: so they can only be too low.
        self._stable |= self.admin.stable_ends(new).offsets
        self._starts |= self.admin.starts(new).offsets
        self._ends |= self.admin.ends(new).offsets

    def _read_letters(self, topics: Iterable[str]) -> None:
        begin: dict[str, dict[int, int]] = {}
        for topic in topics:
            self._letters[topic] = []
            for partition, end in self._stable[topic].items():
                if (start := max(self._starts[topic][partition], end - _LETTERS)) < end:
                    begin.setdefault(topic, {})[partition] = start
        if not begin:
            return
        ends = Position({topic: {p: self._stable[topic][p] for p in starts} for topic, starts in begin.items()})
        with closing(KafkaLogReader(self.settings)) as reader:
            for records in read_to(reader, Position(begin), ends, patience=_PATIENCE):
                for record in records:
                    self._letters[record.topic].append(record._replace(value=None))

    def _find_times(self, parts: list[OffsetRange]) -> None:
        """Finds when the first record of each range was appended, in ms since 1970; None = the range has none."""
        lost = [part for part in parts if part.start < self._starts[part.topic][part.partition]]
        if lost:
            with closing(self._past()) as log:
                self._times |= {part: _first_time(log, part) for part in lost}
        left = {(part.topic, part.partition): part for part in parts if part not in lost}
        if not left:
            return
        with closing(KafkaLogReader(self.settings)) as reader:
            while left:
                for place, at in self._first_times(reader, left).items():
                    self._times[left.pop(place)] = at

    def _first_times(self, reader: KafkaLogReader, left: Mapping[Place, OffsetRange]) -> dict[Place, int | None]:
        """The times of the first records of those ranges that answer first; the others are asked for again."""
        offsets: dict[str, dict[int, int]] = {}
        for part in left.values():
            offsets.setdefault(part.topic, {})[part.partition] = part.start
        reader.seek(Position(offsets))
        found: dict[Place, int | None] = {}
        deadline, polls = time.monotonic() + _PATIENCE, Counter[str]()
        while len(found) < len(left) and polls["found"] < _POLLS:
            for record in reader.poll(500, 0.0 if found else 0.1):
                found.setdefault((record.topic, record.partition), record.time)
            position = reader.position()
            for place, part in left.items():
                if place not in found and position.next_offset(*place) >= part.end:
                    found[place] = None
            polls["found"] += bool(found)
            if not found and time.monotonic() > deadline:
                waiting = ", ".join(f"{topic}[{partition}]" for topic, partition in left)
                raise InfrastructureError(f"nothing could be read within {_PATIENCE:g} s from {waiting}")
        return found

    def _past(self) -> BulkLog:
        """The log from which trimmed records are read, or which says that they are lost."""
        return open_bulk(self.settings, self._archive)()


def _first_time(log: BulkLog, part: OffsetRange) -> int | None:
    """When the first record of a range was appended, in ms since 1970.

    Raises:
        LogGap: neither the topic nor the archive holds it.
    """
    first = next((records[0] for records in log.read(part) if records), None)
    return first.timestamp()[1] if first is not None else None
