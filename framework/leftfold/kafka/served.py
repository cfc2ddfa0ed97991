"""Where a served partition stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from leftfold.kafka.offsets import CLEAN, Left

__all__ = ["Served"]


class Served:
    """The next command of a partition, the metadata committed last, and how careful its next commands are decided.

    After an unclean death batches stay small for a while, so that a command that kills the process is found within
    one small batch; when the last owner died before it committed anything, commands are decided one by one.

    Args:
        state_start: the first offset of the state partition, which a restore found complete from there.
        topics: the ids of topics that `@` knew.
    """

    SMALL: ClassVar[int] = 100
    _FOR: ClassVar[int] = 2000

    def __init__(
        self, next_offset: int, left: Left, *, state_start: int = 0, topics: Mapping[str, str] | None = None
    ) -> None:
        self.next, self.metadata, self.attempts, self.state_start = next_offset, left.token, left.attempts, state_start
        self.topics = topics or {}
        self.begun = False
        self.lonely = self.SMALL if left.suspect else 0
        self.small = 0 if left.token in ("", CLEAN) else self._FOR

    def begin(self, metadata: str) -> None:
        """A commit without progress said that work begins."""
        self.begun, self.metadata = True, metadata

    def move(self, next_offset: int, metadata: str) -> None:
        """A batch is committed."""
        self.next, self.metadata, self.attempts, self.begun = next_offset, metadata, 0, True

    def suspect(self) -> None:
        """One of the next commands outlived a transaction: they are decided one by one, and it may be refused."""
        self.lonely = self.SMALL

    def spend(self) -> None:
        """One command less to be decided alone."""
        self.lonely = max(0, self.lonely - 1)

    def calm(self, decided: int) -> None:
        """The process has survived some commands, of whatever partition: a quiet one must not keep batches small."""
        self.small = max(0, self.small - decided)
