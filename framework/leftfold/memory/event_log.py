"""A log in memory: topics of partitions of records, and its readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.protocols import Headers, RawRecord

__all__ = ["MemoryLog", "MemoryLogReader"]


class MemoryLog:
    """A log of topics in memory; a topic must be created first, and every record is committed."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[RawRecord]]] = {}
        self.ids: dict[str, str] = {}

    def create(self, topic: str, partitions: int) -> None:
        """Creates a topic, unless it exists."""
        self.topics.setdefault(topic, [[] for _ in range(partitions)])

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers, *, time: int = 0
    ) -> RawRecord:
        """Appends a record with a timestamp in ms, and returns it with its offset."""
        records = self.of(topic)[partition]
        record = RawRecord(topic, partition, len(records), key, value, tuple(headers), time)
        records.append(record)
        return record

    def of(self, topic: str) -> list[list[RawRecord]]:
        """The partitions of a topic.

        Raises:
            InfrastructureError: there is no such topic.
        """
        if topic not in self.topics:
            raise InfrastructureError(f"topic {topic} does not exist; does an App in this world own its category?")
        return self.topics[topic]

    def reader(self, topics: Iterable[str] = ()) -> MemoryLogReader:
        """A reader of this log, at the first record of these topics."""
        reader = MemoryLogReader(self)
        reader.seek(Position({topic: dict.fromkeys(range(len(self.of(topic))), 0) for topic in topics}))
        return reader


class MemoryLogReader:
    """A LogReader of a MemoryLog; it never waits, since no record arrives meanwhile."""

    def __init__(self, log: MemoryLog) -> None:
        self._log, self._next = log, dict[tuple[str, int], int]()

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return len(self._log.of(topic))

    def ends(self, topics: Iterable[str]) -> Position:
        """The next offset of every partition."""
        return Position({t: {p: len(r) for p, r in enumerate(self._log.of(t))} for t in topics})

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The ends: every record is committed."""
        return self.ends(topics)

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The topic ids in the log's `ids`; '' for a topic without one."""
        return {topic: self._log.ids.get(topic, "") for topic in topics}

    def check(self, position: Position) -> None:
        """Never raises: no record is ever deleted here."""

    def seek(self, position: Position) -> None:
        """Continues at these offsets."""
        self._next = position.by_partition()

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        """The available records, `limit` at most, one partition after another."""
        found: list[RawRecord] = []
        for (topic, partition), start in self._next.items():
            records = self._log.of(topic)[partition][start : start + limit - len(found)]
            found += records
            self._next[topic, partition] = start + len(records)
        return found

    def position(self) -> Position:
        """The next offset of each partition."""
        return Position.of(self._next)

    def close(self) -> None:
        """Does nothing."""
