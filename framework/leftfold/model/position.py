"""Positions in the log, and recorded events: an event with its metadata (who, when, why, where)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from leftfold.errors import ContractError
from leftfold.model.messages import Event
from leftfold.model.state_codec import number_in

__all__ = ["Position", "Receipt", "RecordAddress", "Recorded"]


Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Position:
    """A vector of offsets `{topic: {partition: next offset}}`; a partition that it does not name counts as 0."""

    offsets: Offsets = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self._json)  # equal offsets have one JSON

    @classmethod
    def at(cls, topic: str, partition: int, next_offset: int) -> Position:
        """The position of one partition: every record below `next_offset` is included."""
        return cls({topic: {partition: next_offset}})

    @classmethod
    def of(cls, offsets: Mapping[tuple[str, int], int]) -> Position:
        """The position with these next offsets, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in offsets.items():
            found.setdefault(topic, {})[partition] = offset
        return cls(found)

    def by_partition(self) -> dict[tuple[str, int], int]:
        """The next offsets by topic and partition."""
        return {(topic, p): offset for topic, offsets in self.offsets.items() for p, offset in offsets.items()}

    def next_offset(self, topic: str, partition: int) -> int:
        """The first offset of the partition that is not included, 0 when it is not named."""
        return self.offsets.get(topic, {}).get(partition, 0)

    def covers(self, other: Position) -> bool:
        """Whether everything in `other` is included here."""
        return all(
            self.next_offset(topic, partition) >= offset
            for topic, partitions in other.offsets.items()
            for partition, offset in partitions.items()
        )

    def beyond(self, other: Position) -> Position:
        """The part of this position that the other does not cover; empty when it covers all of it."""
        return Position.of({p: offset for p, offset in self.by_partition().items() if other.next_offset(*p) < offset})

    def ahead_of(self, other: Position) -> int:
        """How many offsets of this position the other does not cover, transaction markers included."""
        return sum(offset - other.next_offset(*p) for p, offset in self.beyond(other).by_partition().items())

    def only(self, topics: Iterable[str], partition: int | None = None) -> Position:
        """This position restricted to some topics, and to one partition of each if given."""
        wanted = set(topics)
        found = {topic: partitions for topic, partitions in self.offsets.items() if topic in wanted}
        if partition is None:
            return Position(found)
        return Position({t: {partition: ps[partition]} if partition in ps else {} for t, ps in found.items()})

    def __or__(self, other: Position) -> Position:
        """The smallest position that covers both."""
        return Position.union((self, other))

    @classmethod
    def union(cls, positions: Iterable[Position]) -> Position:
        """The smallest position that covers them all."""
        merged: dict[str, dict[int, int]] = {}
        for position in positions:
            for topic, partitions in position.offsets.items():
                mine = merged.setdefault(topic, {})
                for partition, offset in partitions.items():
                    mine[partition] = max(mine.get(partition, 0), offset)
        return cls(merged)

    def __and__(self, other: Position) -> Position:
        """The largest position that both cover; partitions that only one names count as 0 and are left out."""
        theirs = other.by_partition()
        return Position.of({p: min(offset, theirs[p]) for p, offset in self.by_partition().items() if p in theirs})

    def to_json(self) -> str:
        """Canonical JSON: sorted topics and partitions, no spaces."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return json.dumps(
            {t: {str(p): ps[p] for p in sorted(ps)} for t, ps in sorted(self.offsets.items())}, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """The position from the JSON of `to_json`.

        Raises:
            ContractError: the text is no JSON object of objects of whole numbers.
        """
        try:
            return cls({t: {int(p): _offset(o) for p, o in ps.items()} for t, ps in json.loads(text).items()})
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ContractError(f"{text!r} is no position; it looks like {{'topic': {{'0': 12}}}}") from error

    def __str__(self) -> str:
        return " ".join(
            f"{topic}[{','.join(f'{p}:{o}' for p, o in sorted(partitions.items()))}]"
            for topic, partitions in sorted(self.offsets.items())
        )


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value


class RecordAddress(NamedTuple):
    """The address of a record: topic, partition and offset."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    @property
    def source(self) -> str:
        """The address as headers hold it, `topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def from_source(cls, text: str) -> RecordAddress:
        """The address in a text of the form of `source`.

        Raises:
            ContractError: the text has another form.
        """
        topic, *numbers = text.split("/")
        found = [number for part in numbers if (number := number_in(part)) is not None]
        if len(numbers) != 2 or len(found) != 2:
            raise ContractError(f"{text!r} is not topic/partition/offset")
        return cls(topic, *found)


E_co = TypeVar("E_co", bound=Event, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Recorded(Generic[E_co]):
    """A recorded event: an event with its metadata and its address in the log.

    `version` is the stream version 1..n, `decision` is (k, n): the k-th of n events of one decision, `time` is the
    sender's time (UTC), `offset` is the offset in `topic`/`partition`, and `principal` is on whose behalf it
    happened, '' = not known.
    """

    event: E_co
    key: str
    id: str
    time: datetime
    version: int
    decision: tuple[int, int] = (1, 1)
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    principal: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0

    @property
    def position(self) -> Position:
        """The position just behind this event in its own partition."""
        return Position.at(self.topic, self.partition, self.offset + 1)


@dataclass(frozen=True)
class Receipt:
    """The answer to an accepted command: read your own writes with `after=receipt.position`.

    `version` is the stream's version after the command, `events` how many events it wrote.
    """

    position: Position
    version: int
    events: int = 0
