"""Gaps and positions of a log: lost ranges and their errors, the first offsets, and the offsets at a time."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from leftfold.errors import ConfigurationError, InfrastructureError, LogGap
from leftfold.model.position import Position
from leftfold.ports.bulk import Archive, BulkLog, OffsetRange, OpenArchive, Owner, check_owner

__all__ = [
    "beginning", "check_archived", "check_complete", "cut_source", "log_gap", "offsets_for_time", "out_of_reach",
    "unreachable", "unrouted",
]  # fmt: skip


_MOST_NAMED = 8
"""How many partitions a message about lost records names."""
_NAME_ONE = (
    "name the archive that holds them: --archive DIR, or LEFTFOLD_ARCHIVE_DIR=DIR, or archive = 'DIR' under "
    "[tool.leftfold] in pyproject.toml"
)


def log_gap(topic: str, partition: int, start: int, end: int, *, archive: str = "") -> LogGap:
    """The error for offsets `start` to `end` (exclusive) that neither the topic nor the archive holds.

    Args:
        archive: the place of the archive that lacks them; '' = there is none.
    """
    category = topic.removesuffix(".events")
    where = f"and the archive {archive} does not hold them" if archive else "and no archive is configured"
    verify = f"leftfold log verify-archive {category} --archive {shlex.quote(archive)}"
    advice = f"see what it holds: {verify}" if archive else _NAME_ONE
    return LogGap(
        f"a gap in the log: {topic}[{partition}] no longer holds offsets {start} to {end - 1}, {where}; a fold "
        f"without them would be wrong. {advice}"
    )


def unrouted(process: str, lost: OffsetRange) -> LogGap:
    """The error of a router whose next events the topic no longer holds."""
    return LogGap(
        f"a gap in the log: {_place(lost)} no longer holds {_offsets(lost)}, and no router of {process} is known to "
        f"have routed them, so that what happened there may never reach it. If it need not, as when the process is "
        f"younger than these events, skip them: leftfold log skip {process}"
    )


def cut_source(process: str, topic: str, partition: int, offset: int, end: int) -> ConfigurationError:
    """The error of a router whose topic ends before what was routed: the next events would count as taken before."""
    return ConfigurationError(
        f"{topic}[{partition}] ends at {end}, but its events were routed to process {process} up to offset {offset}: "
        f"it was cut, copied or restored, and what comes next would count as what was taken. Bring the former topic "
        f"back, or give the process another name, so that it begins with this one"
    )


def check_archived(topic: str, archived: Mapping[int, int], ends: Position, *, archive: str) -> None:
    """Checks that a topic reaches the ends of its archive; it did when it was archived.

    Args:
        archived: the ends by partition. ends: the topic's, asked for after these. archive: its place, for the message.

    Raises:
        InfrastructureError: the topic is shorter, so it is not the one that was archived.
    """
    for partition, end in sorted(archived.items()):
        if (found := ends.next_offset(topic, partition)) < end:
            raise InfrastructureError(
                f"{topic}[{partition}] ends at {found}, but its archive {archive} at {end}: the topic is not the one "
                f"that was archived. It was created again, or lost records that this archive still holds: keep it, and "
                f"name the archive that belongs to the topic with --archive DIR, or begin one: leftfold log archive "
                f"{topic.removesuffix('.events')} --to DIR"
            )


def check_complete(log: BulkLog, parts: Iterable[OffsetRange]) -> None:
    """Checks that the log holds the first offset of every range; reading checks the rest.

    Raises:
        LogGap: the log no longer holds records of a range.
    """
    wanted = [part for part in parts if part.start < part.end]
    starts = log.starts(dict.fromkeys(part.topic for part in wanted))
    for part in wanted:
        low = starts.next_offset(part.topic, part.partition)
        if part.start < low:
            # Reading raises an error that also says what the archive lacks.
            for _ in log.read(part._replace(end=min(low, part.end))):
                break
            raise log_gap(part.topic, part.partition, part.start, min(low, part.end))


def beginning(topics: Mapping[str, int]) -> Position:
    """The first offset of every partition of some topics."""
    return Position({topic: dict.fromkeys(range(count), 0) for topic, count in topics.items()})


def unreachable(starts: Position, wanted: Position) -> list[OffsetRange]:
    """The ranges between the wanted offsets and the first offsets that the topics still hold."""
    return [
        OffsetRange(*place, wanted.next_offset(*place), start)
        for place, start in sorted(starts.by_partition().items())
        if wanted.next_offset(*place) < start
    ]


def out_of_reach(view: str, lost: Sequence[OffsetRange], advice: str) -> LogGap:
    """The error of a Spark stream, which reads topics and no archive, for ranges that the topics lost."""
    first, *rest = lost
    missing = f"{_place(first)} no longer holds {_offsets(first)}"
    missing += "".join(f", {_place(part)} {_offsets(part)}" for part in rest[: _MOST_NAMED - 1])
    if (more := len(lost) - _MOST_NAMED) > 0:
        missing += f" and {more} more partition{'' if more == 1 else 's'}"
    return LogGap(
        f"a gap in the log: {missing}, and Spark's stream of view {view} cannot read an archive; without them its "
        f"rows would be wrong. {advice}"
    )


def _place(part: OffsetRange) -> str:
    return f"{part.topic}[{part.partition}]"


def _offsets(part: OffsetRange) -> str:
    return f"offsets {part.start} to {part.end - 1}"


class TimedLog(Owner, Protocol):
    """Topics whose records have times, and the offsets that they still hold."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that each partition still holds."""

    def starts_at(self, topic: str, time: int) -> Position:
        """The offset of the first record of every partition at or after a time (ms since 1970), or its end."""


def offsets_for_time(log: TimedLog, topic: str, moment: int, open_archive: OpenArchive | None = None) -> Position:
    """The offsets behind all records appended to a topic before a time, whether or not it has been trimmed.

    Args:
        moment: in ms since 1970.

    Raises:
        InfrastructureError: the topic has lost the records that decide this, and so has the archive, if there is one;
            or the archive is another topic's, or broken.
    """
    found = log.starts_at(topic, moment).offsets[topic]
    # Asked for afterwards: what is trimmed in between is archived by then, and is looked for there.
    starts = log.starts([topic]).offsets[topic]
    if not any(starts.values()):
        return Position({topic: found})
    archive = open_archive() if open_archive is not None else None
    if archive is not None:
        check_owner(archive, topic, log)
    lost = {partition: OffsetRange(topic, partition, 0, starts[partition]) for partition in found}
    return Position({topic: {p: _offset_there(archive, lost[p], moment, offset) for p, offset in found.items()}})


def _offset_there(archive: Archive | None, lost: OffsetRange, moment: int, found: int) -> int:
    """The offset at a time in one partition that has lost a range; `found` is its first record since then."""
    kept = 0 if archive is None else min(lost.end, archive.ends(lost.topic).get(lost.partition, 0))
    earlier = None if archive is None else archive.since(lost._replace(end=kept), moment)
    if earlier is not None:
        return earlier
    if found <= lost.end and kept < lost.end:
        raise log_gap(lost.topic, lost.partition, kept, lost.end, archive="" if archive is None else archive.place)
    return found
