"""Deleting the beginning of a topic: only what the archive holds record by record, and never half a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from leftfold.engine.archive import OpenArchive
from leftfold.engine.archive_check import compare
from leftfold.engine.bulk_log import BulkLog, Range
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.position import Position

__all__ = ["Trim", "Trimming"]


@dataclass(frozen=True)
class Trim:
    """What is to be deleted: these ranges, with so many records in them, all of them verified."""

    topic: str
    parts: tuple[Range, ...]
    records: int


class Trimming:
    """Trims one topic.

    Args:
        log: the topic itself, without its archive.
        delete: deletes what lies before these offsets.
        listeners: by name, such as `process checkout`, the next offset of each partition that who listens to the topic
            will take; a partition that is left out they have not read at all.
    """

    def __init__(
        self,
        topic: str,
        open_archive: OpenArchive,
        log: BulkLog,
        delete: Callable[[str, Mapping[int, int]], Position],
        *,
        listeners: Mapping[str, Mapping[int, int]] | None = None,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._listeners = listeners or {}
        self._topic, self._archive, self._log, self._delete, self._tell = topic, open_archive(), log, delete, tell

    def parts(self, before: Mapping[int, int]) -> list[Range]:
        """What lies before these offsets, unverified.

        Raises:
            InfrastructureError: some of it is not archived, or somebody has not read it.
            ConfigurationError: the topic has no such partition, or ends before.
        """
        starts, ends = self._log.starts([self._topic]), self._log.stable_ends([self._topic])
        archived = self._archive.ends(self._topic)
        parts = []
        for partition, wanted in sorted(before.items()):
            where = f"{self._topic}[{partition}]"
            end = ends.offsets[self._topic].get(partition)
            if end is None:
                raise ConfigurationError(f"{self._topic} has no partition {partition}; see: leftfold topics list")
            if wanted > end:
                raise ConfigurationError(f"{where} ends at {end}: nothing lies before {wanted} that could be deleted")
            if wanted > archived.get(partition, 0):
                category = self._topic.removesuffix(".events")
                raise InfrastructureError(
                    f"{where} is archived up to {archived.get(partition, 0)} only, so nothing before {wanted} is "
                    f"deleted; archive it first: leftfold log archive {category} --to {self._archive.place}"
                )
            start = starts.next_offset(self._topic, partition)
            if start < wanted:
                parts.append(Range(self._topic, partition, start, wanted))
        self._check_read(parts)
        return parts

    def _check_read(self, parts: Iterable[Range]) -> None:
        """A committed offset may stand before the end of a transaction, so the records are what counts."""
        for part in parts:
            for who, offsets in sorted(self._listeners.items()):
                at, name = max(part.start, offsets.get(part.partition, 0)), who.rpartition(" ")[2]
                if next((True for _ in self._log.read(part._replace(start=at))), False):
                    raise InfrastructureError(
                        f"{who} has read {part.topic}[{part.partition}] up to {at} only, so nothing before {part.end} "
                        f"is deleted: it would never reach it. Wait until it has, or start it (leftfold run {name}); "
                        f"or say that it need not know: --leave-behind {name}"
                    )

    def plan(self, before: Mapping[int, int]) -> Trim:
        """What may be deleted before these offsets: compared with the archive, and cut back to whole decisions.

        Raises:
            InfrastructureError: some of it is not archived, or not as it stands in the topic.
        """
        found, records = [], 0
        for part in self.parts(before):
            compared = compare(self._archive, self._log, part, self._tell)
            if compared.difference:
                raise InfrastructureError(
                    f"{compared.difference}; nothing is deleted. Look at the archive {self._archive.place}: "
                    f"leftfold log verify-archive {self._topic.removesuffix('.events')} --deep"
                )
            if part.start < compared.whole_to:
                found.append(part._replace(end=compared.whole_to))
                records += compared.records
        return Trim(self._topic, tuple(found), records)

    def run(self, trim: Trim) -> Position:
        """Deletes it; where the topic's partitions concerned begin then."""
        if not trim.parts:
            return Position()
        return self._delete(self._topic, {part.partition: part.end for part in trim.parts})
