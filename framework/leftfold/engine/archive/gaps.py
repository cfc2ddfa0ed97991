"""Positions of a log: its ends, the offsets at a time, and ranges that were lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from leftfold.errors import ConfigurationError, LogGap
from leftfold.model.position import Position
from leftfold.ports.bulk import Archive, BulkLog, OffsetRange, OpenArchive, Owner, check_owner

__all__ = [
    "beginning",
    "check_whole",
    "cut_source",
    "log_gap",
    "offsets_for_time",
    "out_of_reach",
    "unreachable",
    "unrouted",
]


_TOLD = 8
"""Of how many partitions a message tells what is gone."""
_NAME_ONE = (
    "name the archive that holds them: --archive DIR, or LEFTFOLD_ARCHIVE_DIR=DIR, or archive = 'DIR' under "
    "[tool.leftfold] in pyproject.toml"
)


def log_gap(topic: str, partition: int, start: int, end: int, *, archive: str = "") -> LogGap:
    """The error for offsets `start` to `end` (not included) that are neither in the topic nor in the archive, if any.

    Args:
        archive: where the archive is that lacks them; '' = there is none.
    """
    category = topic.removesuffix(".events")
    where = f"and the archive {archive} does not hold them" if archive else "and no archive is configured"
    mend = f"see what it holds: leftfold log verify-archive {category} --archive {archive}" if archive else _NAME_ONE
    return LogGap(
        f"a hole in the log: {topic}[{partition}] no longer holds offsets {start} to {end - 1}, {where}; a fold "
        f"without them would be wrong. {mend}"
    )


def unrouted(process: str, gone: OffsetRange) -> LogGap:
    """The error of a router whose next events are gone from a topic."""
    return LogGap(
        f"a hole in the log: {_place(gone)} no longer holds {_offsets(gone)}, and no router of {process} is known to "
        f"have routed them, so that what happened there may never reach it. If it need not, as when the process is "
        f"younger than these events, pass over them: leftfold log skip {process}"
    )


def cut_source(process: str, topic: str, partition: int, offset: int, end: int) -> ConfigurationError:
    """The error of a router whose topic ends before what was routed: what comes next would count as taken before."""
    return ConfigurationError(
        f"{topic}[{partition}] ends at {end}, but its events were routed to process {process} up to offset {offset}: "
        f"it was cut, copied or restored, and what comes next would count as what was taken. Bring the former topic "
        f"back, or give the process another name, so that it begins with this one"
    )


def check_whole(log: BulkLog, parts: Iterable[OffsetRange]) -> None:
    """Checks that the log holds the first offset of every range; reading checks the rest.

    Raises:
        LogGap: records of a range are gone.
    """
    wanted = [part for part in parts if part.start < part.end]
    starts = log.starts(dict.fromkeys(part.topic for part in wanted))
    for part in wanted:
        low = starts.next_offset(part.topic, part.partition)
        if part.start < low:
            # The log knows best what its archive lacks, and says so.
            for _ in log.read(part._replace(end=min(low, part.end))):
                break
            raise log_gap(part.topic, part.partition, part.start, min(low, part.end))


def beginning(topics: Mapping[str, int]) -> Position:
    """The first offset of every partition of some topics."""
    return Position({topic: dict.fromkeys(range(count), 0) for topic, count in topics.items()})


def unreachable(starts: Position, wanted: Position) -> list[OffsetRange]:
    """What lies between the offsets from which a topic is to be read and those at which it begins."""
    return [
        OffsetRange(topic, partition, wanted.next_offset(topic, partition), start)
        for topic, partitions in sorted(starts.offsets.items())
        for partition, start in sorted(partitions.items())
        if wanted.next_offset(topic, partition) < start
    ]


def out_of_reach(view: str, gone: Sequence[OffsetRange], mend: str) -> LogGap:
    """The error of a stream of Spark, which reads topics and no archive, for what it should have read there."""
    first, *rest = gone
    told = f"{_place(first)} no longer holds {_offsets(first)}"
    told += "".join(f", {_place(part)} {_offsets(part)}" for part in rest[: _TOLD - 1])
    if (more := len(gone) - _TOLD) > 0:
        told += f" and {more} more partition{'' if more == 1 else 's'}"
    return LogGap(
        f"a hole in the log: {told}, and Spark's stream of view {view} cannot read an archive; without them its rows "
        f"would be wrong. {mend}"
    )


def _place(part: OffsetRange) -> str:
    return f"{part.topic}[{part.partition}]"


def _offsets(part: OffsetRange) -> str:
    return f"offsets {part.start} to {part.end - 1}"


class TimedLog(Owner, Protocol):
    """Topics whose records have times; it answers for what they still hold."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that each partition still holds."""

    def starts_at(self, topic: str, time: int) -> Position:
        """The offset of the first record of every partition at or after a time in ms since 1970, else its end."""


def offsets_for_time(log: TimedLog, topic: str, moment: int, open_archive: OpenArchive | None = None) -> Position:
    """Behind everything that was appended to a topic before a moment, whether or not the topic has been trimmed.

    Args:
        moment: in ms since 1970.

    Raises:
        InfrastructureError: the topic has lost what would tell, and so has the archive, if there is one; or the
            archive is another topic's, or broken.
    """
    found = log.starts_at(topic, moment).offsets[topic]
    # Asked for afterwards: what somebody trims in between is archived by then, and is looked for there.
    starts = log.starts([topic]).offsets[topic]
    if not any(starts.values()):
        return Position({topic: found})
    archive = open_archive() if open_archive is not None else None
    if archive is not None:
        check_owner(archive, topic, log)
    return Position(
        {
            topic: {
                partition: _offset_there(archive, OffsetRange(topic, partition, 0, starts[partition]), moment, offset)
                for partition, offset in found.items()
            }
        }
    )


def _offset_there(archive: Archive | None, lost: OffsetRange, moment: int, found: int) -> int:
    """The place in one partition, which has lost a range, and whose first record since then is `found`."""
    kept = 0 if archive is None else min(lost.end, archive.ends(lost.topic).get(lost.partition, 0))
    earlier = None if archive is None else archive.since(lost._replace(end=kept), moment)
    if earlier is not None:
        return earlier
    if found <= lost.end and kept < lost.end:
        raise log_gap(lost.topic, lost.partition, kept, lost.end, archive="" if archive is None else archive.place)
    return found
