"""The past of the log, kept outside it: what an archive owes its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from leftfold.engine.bulk_log import BulkRecord, Range
from leftfold.errors import InfrastructureError

__all__ = ["Archive", "OpenArchive", "Owner", "check_owner"]


class Archive(Protocol):
    """Reads what has been archived; one thread uses it. It is as it was when it was first asked about a topic."""

    @property
    def place(self) -> str:
        """Where it is, as messages call it."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """Per partition the offset up to which everything from 0 is there; a topic it does not know has none."""

    def identity(self, topic: str) -> str:
        """The id of the topic that was archived, as its cluster called it; '' for one that it does not know."""

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range below the end, in order, in batches.

        Raises:
            InfrastructureError: a file is missing, shorter than it was or not what was written; or part of the range
                is not there.
        """

    def since(self, part: Range, time: int) -> int | None:
        """The offset of the first record of a range at or after a time in ms since 1970, None when all are older.

        Raises:
            InfrastructureError: as `read` does.
        """


class Owner(Protocol):
    """Knows which topic bears a name now."""

    def identity(self, topic: str) -> str:
        """The id that the cluster gave the topic; one that is made anew has another."""


def check_owner(archive: Archive, topic: str, owner: Owner) -> None:
    """Checks that an archive is the topic's own.

    Raises:
        InfrastructureError: it is another topic's of the same name.
    """
    kept = archive.identity(topic)
    if kept and kept != (found := owner.identity(topic)):
        raise InfrastructureError(
            f"the archive {archive.place} is of a topic {topic} with id {kept}, and the one that is there now has "
            f"id {found}: somebody has made the topic anew, and the two are not one log. Name the archive that belongs "
            f"to it with --archive DIR, or begin one: leftfold log archive {topic.removesuffix('.events')} --to DIR"
        )


OpenArchive = Callable[[], Archive]
"""Makes an Archive; shipped to where tasks run, so it must be picklable."""
