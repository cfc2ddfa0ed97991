"""Deletes the beginning of a topic once the archive holds it record by record, at the boundary of a decision."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.bulk import Archive, BulkLog, OffsetRange, OpenArchive, read_range
from leftfold.ports.message_codec import header, is_last_of_decision
from leftfold.ports.protocols import RawRecord

__all__ = ["Trim", "Trimming", "compare"]


@dataclass(frozen=True)
class Compared:
    """The result of comparing a range.

    Args:
        records: in whole decisions.
        whole_to: an offset in the range, at most its end, below which there are whole decisions only.
        difference: where the two first differ; '' = nowhere.
    """

    records: int
    whole_to: int
    difference: str = ""


def compare(
    archive: Archive, log: BulkLog, part: OffsetRange, tell: Callable[[int], None] = lambda count: None
) -> Compared:
    """Compares a range that archive and topic should both hold: offsets, keys, values, headers, times.

    Raises:
        InfrastructureError: one of them does not hold the range, or a file is broken.
    """
    whole, start = 0, -1
    pairs = zip_longest(read_range(archive, part), read_range(log, part, tell))
    for count, (kept, found) in enumerate(pairs, 1):
        if kept != found:
            where = min(record.offset for record in (kept, found) if record is not None)
            return Compared(whole, part.start, f"{part.topic}[{part.partition}]@{where}: {_difference(kept, found)}")
        if start < 0:
            start = kept.offset
        if is_last_of_decision(header(kept.headers, "ce_decision")):
            whole, start = count, -1
    return Compared(whole, start if start >= 0 else part.end)


def _difference(kept: RawRecord | None, found: RawRecord | None) -> str:
    if kept is None or found is None or kept.offset != found.offset:
        return f"only {'the topic' if kept is None or (found and found.offset < kept.offset) else 'the archive'} has it"
    names = [name for name in RawRecord._fields if getattr(kept, name) != getattr(found, name)]
    return f"archive and topic differ in {', '.join(names)}"


@dataclass(frozen=True)
class Trim:
    """The ranges to delete and their number of records, all of them verified."""

    topic: str
    parts: tuple[OffsetRange, ...]
    records: int


class Trimming:
    """Trims one topic.

    Args:
        log: the topic itself, without its archive.
        delete: deletes the records before these offsets.
        listeners: the next offset of each partition that a listener will take, by its name such as `process checkout`;
            a partition that is left out it has not read at all.
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

    def parts(self, before: Mapping[int, int]) -> list[OffsetRange]:
        """The ranges before these offsets, unverified.

        Raises:
            InfrastructureError: some records are not archived, or a listener has not read them.
            ConfigurationError: the topic has no such partition, or ends before.
        """
        starts, ends = self._log.starts([self._topic]), self._log.stable_ends([self._topic])
        archived, place = self._archive.ends(self._topic), shlex.quote(self._archive.place)
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
                    f"deleted; archive it first: leftfold log archive {category} --to {place}"
                )
            start = starts.next_offset(self._topic, partition)
            if start < wanted:
                parts.append(OffsetRange(self._topic, partition, start, wanted))
        self._check_read(parts)
        return parts

    def _check_read(self, parts: Iterable[OffsetRange]) -> None:
        """Checks that every listener has read the ranges.

        A committed offset may stand before the end of a transaction, so records are counted, not offsets.
        """
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
        """The deletion of the records before these offsets: compared with the archive, and cut back to whole decisions.

        Raises:
            InfrastructureError: some records are not archived, or differ from those in the topic.
        """
        found, records = [], 0
        for part in self.parts(before):
            compared = compare(self._archive, self._log, part, self._tell)
            if compared.difference:
                category, place = self._topic.removesuffix(".events"), shlex.quote(self._archive.place)
                raise InfrastructureError(
                    f"{compared.difference}; nothing is deleted. Look at the archive: "
                    f"leftfold log verify-archive {category} --deep --archive {place}"
                )
            if part.start < compared.whole_to:
                found.append(part._replace(end=compared.whole_to))
                records += compared.records
        return Trim(self._topic, tuple(found), records)

    def run(self, trim: Trim) -> Position:
        """Deletes the ranges; returns the new start offsets of these partitions.

        Raises:
            InfrastructureError: a listener has not read them; it may have come, or been set back, since the plan.
        """
        if not trim.parts:
            return Position()
        self._check_read(trim.parts)
        return self._delete(self._topic, {part.partition: part.end for part in trim.parts})
