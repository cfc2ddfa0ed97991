"""The log in memory for rebuilds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from leftfold.model.position import Position
from leftfold.ports.bulk import BulkRecord, OffsetRange, ReadRecord, read_to
from leftfold.ports.protocols import LogReader

__all__ = ["CommittedLog"]

_BATCH = 100


class CommittedLog:
    """A BulkLog over a LogReader of a log whose every record is committed, such as the one in memory."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self._reader.partitions(topic)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The end offsets; no transaction is ever open here."""
        return self._reader.ends(topics)

    def starts(self, topics: Iterable[str]) -> Position:
        """Offset 0 of every partition; no record is ever deleted here."""
        return Position({topic: dict.fromkeys(range(self.partitions(topic)), 0) for topic in topics})

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The topic ids that the reader has."""
        return self._reader.identities(topics)

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range."""
        start, end = (Position.at(part.topic, part.partition, offset) for offset in (part.start, part.end))
        for records in read_to(self._reader, start, end, limit=_BATCH):
            yield [ReadRecord(r) for r in records if r.offset < part.end]

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()
