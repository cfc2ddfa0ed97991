"""Where the log stood at a moment: the topic knows of what it holds, the archive of what the topic has lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from leftfold.engine.archive import Archive, OpenArchive, Owner, check_owner
from leftfold.engine.bulk_log import Range
from leftfold.engine.hole import hole
from leftfold.position import Position

__all__ = ["TimedLog", "place_at"]


class TimedLog(Owner, Protocol):
    """Topics whose records have times; it answers for what they still hold."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that each partition still holds."""

    def starts_at(self, topic: str, time: int) -> Position:
        """The offset of the first record of every partition at or after a time in ms since 1970, else its end."""


def place_at(log: TimedLog, topic: str, moment: int, open_archive: OpenArchive | None = None) -> Position:
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
                partition: _place(archive, Range(topic, partition, 0, starts[partition]), moment, offset)
                for partition, offset in found.items()
            }
        }
    )


def _place(archive: Archive | None, lost: Range, moment: int, found: int) -> int:
    """The place in one partition, which has lost a range, and whose first record since then is `found`."""
    kept = 0 if archive is None else min(lost.end, archive.ends(lost.topic).get(lost.partition, 0))
    earlier = None if archive is None else archive.since(lost._replace(end=kept), moment)
    if earlier is not None:
        return earlier
    if found <= lost.end and kept < lost.end:
        raise hole(lost.topic, lost.partition, kept, lost.end, archive="" if archive is None else archive.place)
    return found
