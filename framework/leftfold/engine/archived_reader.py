"""Archive and topic as one log for tails and restores: the archive is opened only for what the topic has lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from leftfold.engine.archive import Archive, OpenArchive, Owner, check_owner
from leftfold.engine.bulk_log import Range, raw
from leftfold.engine.hole import hole
from leftfold.errors import InfrastructureError
from leftfold.ports import LogReader, RawRecord
from leftfold.position import Position

__all__ = ["ArchivedReader", "StartingReader"]


class StartingReader(LogReader, Owner, Protocol):
    """A LogReader of topics that have ids, and whose beginning may have been deleted."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that each partition still holds."""


class ArchivedReader:
    """A LogReader; partitions that are to be read from before the topic's start are read from the archive first.

    Meanwhile the other partitions wait, and all go on together from the topic when the archive has been read.
    """

    def __init__(self, reader: StartingReader, open_archive: OpenArchive) -> None:
        self._reader, self._open = reader, open_archive
        self._parts: deque[Range] = deque()
        self._coming: Iterator[RawRecord] | None = None
        self._next: dict[tuple[str, int], int] = {}

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self._reader.partitions(topic)

    def ends(self, topics: Iterable[str]) -> Position:
        """The topic's own ends."""
        return self._reader.ends(topics)

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of the topics."""
        return self._reader.identities(topics)

    def check(self, position: Position) -> None:
        """Checks that archive and topic hold what lies behind these offsets.

        Raises:
            InfrastructureError: they do not, or the archive is of another topic.
        """
        for _ in self._missing(position):
            pass

    def seek(self, position: Position) -> None:
        """Reads on from these offsets.

        Raises:
            InfrastructureError: some of what lies before the topic's start is not in the archive.
        """
        self._coming = None
        self._next = {(t, p): o for t, ps in position.offsets.items() for p, o in ps.items()}
        self._parts = deque(self._missing(position))
        if not self._parts:
            self._reader.seek(position)

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        """The next records, from the archive as long as it has some of what was asked for."""
        if not self._parts:
            return self._poll_topic(limit, timeout)
        part = self._parts[0]
        place = part.topic, part.partition
        coming = self._coming = self._coming or self._archived(part)
        records: list[RawRecord] = []
        for record in coming:
            records.append(record)
            if len(records) >= limit:
                self._next[place] = record.offset + 1
                return records
        self._next[place], self._coming = part.end, None
        if len(self._parts) == 1:
            self._reader.seek(self.position())
        self._parts.popleft()
        return records

    def _poll_topic(self, limit: int, timeout: float) -> list[RawRecord]:
        try:
            return self._reader.poll(limit, timeout)
        except InfrastructureError:
            position = self._reader.position()
            self._next = {(t, p): o for t, ps in position.offsets.items() for p, o in ps.items()}
            if not list(self._missing(position)):
                raise
            # Somebody has trimmed what was to be read next; it is in the archive now.
            self.seek(position)
            return []

    def position(self) -> Position:
        """Where each partition goes on."""
        if not self._parts:
            return self._reader.position()
        position: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in self._next.items():
            position.setdefault(topic, {})[partition] = offset
        return Position(position)

    def close(self) -> None:
        """Lets go of connections."""
        self._parts.clear()
        self._reader.close()

    def _missing(self, wanted: Position) -> Iterator[Range]:
        """What the topic no longer holds of what lies behind some offsets, up to the archive's end."""
        archive: Archive | None = None
        checked: set[str] = set()
        starts = self._reader.starts(wanted.offsets)
        for topic, partition, offset in ((t, p, o) for t, ps in wanted.offsets.items() for p, o in ps.items()):
            low = starts.next_offset(topic, partition)
            if offset >= low:
                continue
            archive = archive or self._open()
            if topic not in checked:
                check_owner(archive, topic, self._reader)
                checked.add(topic)
            end = archive.ends(topic).get(partition, 0)
            if end < low:
                raise hole(topic, partition, max(offset, end), low, archive=archive.place)
            self._archive = archive
            yield Range(topic, partition, offset, end)

    def _archived(self, part: Range) -> Iterator[RawRecord]:
        for records in self._archive.read(part):
            for record in records:
                yield raw(part, record)
