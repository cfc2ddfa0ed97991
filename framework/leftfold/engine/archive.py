"""The past of the log, kept outside it: what an archive owes its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from leftfold.engine.bulk_log import BulkRecord, Range

__all__ = ["Archive", "OpenArchive"]


class Archive(Protocol):
    """Reads what has been archived; one thread uses it. It is as it was when it was first asked about a topic."""

    @property
    def place(self) -> str:
        """Where it is, as messages call it."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """Per partition the offset up to which everything from 0 is there; a topic it does not know has none."""

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range below the end, in order, in batches.

        Raises:
            InfrastructureError: a file is missing, shorter than it was or not what was written; or part of the range
                is not there.
        """


OpenArchive = Callable[[], Archive]
"""Makes an Archive; shipped to where tasks run, so it must be picklable."""
