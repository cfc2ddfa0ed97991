"""Archive and topic as one log for folds of everything: the past from files, the rest from the brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from leftfold.engine.archive import OpenArchive, Owner, check_owner
from leftfold.engine.bulk_log import BulkLog, BulkRecord, Range
from leftfold.engine.hole import hole
from leftfold.errors import InfrastructureError
from leftfold.position import Position

__all__ = ["ArchivedLog", "OwnedLog"]


class OwnedLog(BulkLog, Owner, Protocol):
    """A BulkLog of topics that have ids."""


class ArchivedLog:
    """A BulkLog that reads a range from the archive up to where that ends, and from the topic after."""

    def __init__(self, open_archive: OpenArchive, open_log: Callable[[], OwnedLog]) -> None:
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
        ends = self._log.stable_ends(topics)
        for topic, partitions in ends.offsets.items():
            for partition in self._archive.ends(topic):
                end = self._end(topic, partition)
                if partitions.get(partition, 0) < end:
                    raise InfrastructureError(
                        f"{topic}[{partition}] ends at {partitions.get(partition, 0)}, but its archive "
                        f"{self._archive.place} at {end}: the topic is not the one that was archived. Somebody made "
                        f"it anew, or records were lost; name the archive that belongs to it with --archive DIR"
                    )
        return ends

    def starts(self, topics: Iterable[str]) -> Position:
        """Where archive and topic together begin: 0 where the archive reaches the topic."""
        starts = self._log.starts(topics)
        return Position(
            {t: {p: 0 if self._end(t, p) >= low else low for p, low in ps.items()} for t, ps in starts.offsets.items()}
        )

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids of the topics."""
        return self._log.identities(topics)

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range in order.

        Raises:
            InfrastructureError: one of them is in neither, or the archive is broken.
        """
        cut = min(part.end, self._end(part.topic, part.partition))
        rest = part._replace(start=max(part.start, cut))
        if rest.start < rest.end:
            low = self._log.starts([part.topic]).next_offset(part.topic, part.partition)
            if rest.start < low:
                raise hole(part.topic, part.partition, rest.start, min(low, part.end), archive=self._archive.place)
        if part.start < cut:
            yield from self._archive.read(part._replace(end=cut))
        if rest.start < rest.end:
            yield from self._log.read(rest)

    def close(self) -> None:
        """Lets go of connections."""
        self._log.close()

    def _end(self, topic: str, partition: int) -> int:
        if topic not in self._ours:
            check_owner(self._archive, topic, self._log)
            self._ours.add(topic)
        return self._archive.ends(topic).get(partition, 0)
