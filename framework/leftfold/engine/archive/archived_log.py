"""Archive and topic as one log: records that the topic has lost are read from the archive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from leftfold.engine.log_gaps import check_archived, log_gap
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.bulk import Archive, BulkLog, BulkRecord, OffsetRange, OpenArchive, check_owner, read_range
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["ArchivedLog", "ArchivedReader"]


class ArchivedLog:
    """A BulkLog that reads a range from the archive up to the archive's end, and from the topic after that."""

    def __init__(self, open_archive: OpenArchive, open_log: Callable[[], BulkLog]) -> None:
        self._archive, self._log = open_archive(), open_log()
        self._ours: set[str] = set()

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self._log.partitions(topic)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The topic's stable ends.

        Raises:
            InfrastructureError: a topic is shorter than its archive, so it is not the one that was archived.
        """
        archived = {topic: self._archive.ends(topic) for topic in topics}
        ends = self._log.stable_ends(archived)
        for topic, kept in archived.items():
            self._check_owner(topic)
            check_archived(topic, kept, ends, archive=self._archive.place)
        return ends

    def starts(self, topics: Iterable[str]) -> Position:
        """The start offsets of archive and topic together: 0 where the archive reaches the topic."""
        starts = self._log.starts(topics).by_partition()
        return Position.of({place: 0 if self._end(*place) >= low else low for place, low in starts.items()})

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of the topics."""
        return self._log.identities(topics)

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range in order.

        Raises:
            InfrastructureError: one of them is in neither, or the archive is broken.
        """
        cut = min(part.end, self._end(part.topic, part.partition))
        rest = part._replace(start=max(part.start, cut))
        if rest.start < rest.end:
            low = self._log.starts([part.topic]).next_offset(part.topic, part.partition)
            if rest.start < low:
                raise log_gap(part.topic, part.partition, rest.start, min(low, part.end), archive=self._archive.place)
        if part.start < cut:
            yield from self._archive.read(part._replace(end=cut))
        if rest.start < rest.end:
            yield from self._log.read(rest)

    def close(self) -> None:
        """Closes the log's connections."""
        self._log.close()

    def _end(self, topic: str, partition: int) -> int:
        self._check_owner(topic)
        return self._archive.ends(topic).get(partition, 0)

    def _check_owner(self, topic: str) -> None:
        if topic not in self._ours:
            check_owner(self._archive, topic, self._log)
            self._ours.add(topic)


class StartingReader(LogReader, Protocol):
    """A LogReader of topics whose beginning may have been deleted."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that each partition still holds."""


class ArchivedReader:
    """A LogReader that reads from the archive first where a partition's topic no longer holds the records.

    Meanwhile the other partitions wait; all continue together from the topic when the archive has been read.
    """

    def __init__(self, reader: StartingReader, open_archive: OpenArchive) -> None:
        self._reader, self._open = reader, open_archive
        self._parts: deque[OffsetRange] = deque()
        self._coming: Iterator[RawRecord] | None = None
        self._next: dict[tuple[str, int], int] = {}

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self._reader.partitions(topic)

    def ends(self, topics: Iterable[str]) -> Position:
        """The topic's own ends."""
        return self._reader.ends(topics)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The topic's own stable ends."""
        return self._reader.stable_ends(topics)

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of the topics."""
        return self._reader.identities(topics)

    def check(self, position: Position) -> None:
        """Checks that archive and topic hold the records from these offsets on.

        Raises:
            InfrastructureError: they do not, or the archive is of another topic.
        """
        for _ in self._missing(position):
            pass

    def seek(self, position: Position) -> None:
        """Continues reading from these offsets.

        Raises:
            InfrastructureError: some of the records before the topic's start are not in the archive.
        """
        self._coming, self._next = None, position.by_partition()
        self._parts = deque(self._missing(position))
        if not self._parts:
            self._reader.seek(position)

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        """The next records, from the archive as long as it has requested ones."""
        if not self._parts:
            return self._poll_topic(limit, timeout)
        part = self._parts[0]
        place = part.topic, part.partition
        begin = self._next[place]
        records: list[RawRecord] = []
        try:
            coming = self._coming = self._coming or read_range(self._archive, part)
            for record in coming:
                records.append(record)
                if len(records) >= limit:
                    self._next[place] = record.offset + 1
                    return records
            self._next[place], self._coming = part.end, None
            if len(self._parts) == 1:
                self._reader.seek(self.position())
        except BaseException:
            # A generator that has failed seems to be at its end: the next call reads these records with another one.
            self._parts[0], self._next[place], self._coming = part._replace(start=begin), begin, None
            raise
        self._parts.popleft()
        return records

    def _poll_topic(self, limit: int, timeout: float) -> list[RawRecord]:
        try:
            return self._reader.poll(limit, timeout)
        except InfrastructureError:
            position = self._reader.position()
            self._next = position.by_partition()
            if not list(self._missing(position)):
                raise
            # Retention has deleted the next records from the topic; they are in the archive now.
            self.seek(position)
            return []

    def position(self) -> Position:
        """The next offset of each partition."""
        return Position.of(self._next) if self._parts else self._reader.position()

    def close(self) -> None:
        """Closes the log's connections."""
        self._parts.clear()
        self._reader.close()

    def _missing(self, wanted: Position) -> Iterator[OffsetRange]:
        """The ranges from some offsets on that the topic no longer holds, up to the archive's end."""
        archive: Archive | None = None
        checked: set[str] = set()
        starts = self._reader.starts(wanted.offsets)
        for (topic, partition), offset in wanted.by_partition().items():
            low = starts.next_offset(topic, partition)
            if offset >= low:
                continue
            archive = archive or self._open()
            if topic not in checked:
                check_owner(archive, topic, self._reader)
                checked.add(topic)
            end = archive.ends(topic).get(partition, 0)
            if end < low:
                raise log_gap(topic, partition, max(offset, end), low, archive=archive.place)
            self._archive = archive
            yield OffsetRange(topic, partition, offset, end)
