"""Refusing a log with a hole: whoever folds from 0 must have every record, in the topic or in an archive."""

from __future__ import annotations

from collections.abc import Iterable

from leftfold.engine.bulk_log import BulkLog, Range
from leftfold.errors import InfrastructureError

__all__ = ["check_whole", "hole"]

_NAME_ONE = (
    "name the archive that holds them: --archive DIR, or LEFTFOLD_ARCHIVE_DIR=DIR, or archive = 'DIR' under "
    "[tool.leftfold] in pyproject.toml"
)


def hole(topic: str, partition: int, start: int, end: int, *, archive: str = "") -> InfrastructureError:
    """The error for offsets `start` to `end` (not included) that are neither in the topic nor in the archive, if any.

    Args:
        archive: where the archive is that lacks them; '' = there is none.
    """
    category = topic.removesuffix(".events")
    where = f"and the archive {archive} does not hold them" if archive else "and no archive is configured"
    mend = f"see what it holds: leftfold log verify-archive {category} --archive {archive}" if archive else _NAME_ONE
    return InfrastructureError(
        f"a hole in the log: {topic}[{partition}] no longer holds offsets {start} to {end - 1}, {where}; a fold "
        f"without them would be wrong. {mend}"
    )


def check_whole(log: BulkLog, parts: Iterable[Range]) -> None:
    """Checks that the log holds the first offset of every range; reading checks the rest.

    Raises:
        InfrastructureError: records of a range are gone.
    """
    wanted = [part for part in parts if part.start < part.end]
    starts = log.starts(dict.fromkeys(part.topic for part in wanted))
    for part in wanted:
        low = starts.next_offset(part.topic, part.partition)
        if part.start < low:
            # The log knows best what its archive lacks, and says so.
            for _ in log.read(part._replace(end=part.start + 1)):
                break
            raise hole(part.topic, part.partition, part.start, min(low, part.end))
