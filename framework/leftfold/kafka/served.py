"""Where a served partition stands."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from leftfold.engine.statemark import StateMark
from leftfold.kafka.offsets import CLEAN, Left

__all__ = ["Served"]


class Served:
    """The next command of a partition, the metadata committed last, and how careful its next commands are decided.

    After an unclean death batches stay small for a while, so that a command that kills the process is found within
    one small batch; when the last owner died before it committed anything, commands are decided one by one.

    `refused` is why the broker refused what the next command makes, decided alone.

    Args:
        state_start: the first offset of the state partition, which a restore found complete from there.
        known: the last `@` of the state partition, which knows ids of topics and what commands cost.
    """

    SMALL: ClassVar[int] = 100
    _SHARE: ClassVar[float] = 0.1
    _FOR: ClassVar[int] = 2000

    def __init__(self, next_offset: int, left: Left, *, state_start: int = 0, known: StateMark | None = None) -> None:
        self.next, self.metadata, self.attempts, self.state_start = next_offset, left.token, left.attempts, state_start
        self._known = known or StateMark()
        self._per_command, self._dropped = float(self._known.per_command), self._known.answers_dropped
        self.begun, self.refused = False, ""
        self.lonely = self.SMALL if left.suspect else 0
        self.small = 0 if left.token in ("", CLEAN) else self._FOR

    def begin(self, metadata: str) -> None:
        """A commit without progress said that work begins."""
        self.begun, self.metadata = True, metadata

    def move(self, next_offset: int, metadata: str) -> None:
        """A batch is committed."""
        self.next, self.metadata, self.attempts, self.begun, self.refused = next_offset, metadata, 0, True, ""

    @property
    def known(self) -> StateMark:
        """What the next `@` goes on with: ids of topics, and what commands have cost in the last ten transactions."""
        return replace(self._known, per_command=round(self._per_command), answers_dropped=self._dropped)

    def spent(self, state_bytes: int, commands: int, answers_dropped: int) -> None:
        """Counts what a transaction has written for its commands."""
        self._per_command += self._SHARE * (state_bytes / commands - self._per_command)
        self._dropped += answers_dropped

    def suspect(self) -> None:
        """One of the next commands outlived a transaction, or what it makes is refused: they are decided one by one."""
        self.lonely = self.SMALL

    def spend(self) -> None:
        """One command less to be decided alone."""
        self.lonely = max(0, self.lonely - 1)

    def calm(self, decided: int) -> None:
        """The process has survived some commands, of whatever partition: a quiet one must not keep batches small."""
        self.small = max(0, self.small - decided)
