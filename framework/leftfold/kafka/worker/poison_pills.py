"""Isolates poison pills, commands that may kill a worker: from the offset metadata that the last owner left."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import ClassVar

from leftfold.engine.processing.stream_state import ChangelogCheckpoint
from leftfold.model.state_codec import number_in

__all__ = ["CLEAN", "STARTED", "AssignedPartition", "OffsetMetadata", "attempt", "new_token", "read_metadata"]


CLEAN, STARTED = "clean", "s"
"""The metadata of a partition that was left in order, or that was taken over without progress so far."""


@dataclass(frozen=True)
class OffsetMetadata:
    """The metadata of a committed offset: how the last owner left the partition.

    `suspect`: the last owner died before committing anything, so one of the next commands may be a poison pill.
    `attempts`: how often the next command was tried alone.
    """

    token: str
    suspect: bool
    attempts: int


def new_token() -> str:
    """Random metadata for a batch, by which a commit of unknown outcome is recognised."""
    return f"b:{secrets.token_hex(8)}"


def attempt(number: int) -> str:
    """The metadata written before the `number`-th try of the next command alone."""
    return f"a:{number}"


def read_metadata(metadata: str | None) -> OffsetMetadata:
    """Parses offset metadata; an unknown value counts as the end of a batch."""
    text = metadata or ""
    if text == STARTED:
        return OffsetMetadata(text, suspect=True, attempts=0)
    if text.startswith("a:") and (attempts := number_in(text[2:])) is not None:
        return OffsetMetadata(text, suspect=True, attempts=attempts)
    return OffsetMetadata(text, suspect=False, attempts=0)


class AssignedPartition:
    """A partition that the worker serves: its next offset, its committed metadata, and its batching limits.

    After an unclean death batches stay small for a while, so that a poison pill is found within one small batch. When
    the last owner died before it committed anything, commands are decided one by one.

    `refused` is why the broker refused the records of the next command, decided alone.

    Args:
        state_start: the first offset of the state partition; the restore found it complete from there.
        known: the last changelog checkpoint (`@`) of the state partition, with topic ids and the cost of commands.
    """

    SMALL: ClassVar[int] = 100
    _SHARE: ClassVar[float] = 0.1
    _FOR: ClassVar[int] = 2000

    def __init__(
        self, next_offset: int, left: OffsetMetadata, *, state_start: int = 0, known: ChangelogCheckpoint | None = None
    ) -> None:
        self.next, self.metadata, self.attempts, self.state_start = next_offset, left.token, left.attempts, state_start
        self._known = known or ChangelogCheckpoint()
        self._per_command, self._dropped = float(self._known.per_command), self._known.answers_dropped
        self.begun, self.refused = False, ""
        self.isolated_remaining = self.SMALL if left.suspect else 0
        self.reduced_batch_remaining = 0 if left.token in ("", CLEAN) else self._FOR

    def begin(self, metadata: str) -> None:
        """Records that a commit without progress has announced the start of processing."""
        self.begun, self.metadata = True, metadata

    def move(self, next_offset: int, metadata: str) -> None:
        """Advances to the next offset after a committed batch."""
        self.next, self.metadata, self.attempts, self.begun, self.refused = next_offset, metadata, 0, True, ""

    @property
    def withdrawn(self) -> tuple[int, str] | None:
        """The next offset, and the metadata that takes back an attempt of this worker; None = it has made none."""
        is_tried = self.begun and self.metadata == attempt(self.attempts + 1)
        return (self.next, attempt(self.attempts)) if is_tried else None

    @property
    def known(self) -> ChangelogCheckpoint:
        """The values for the next changelog checkpoint: topic ids, and the average cost of the last commands.

        The cost is a moving average over about ten transactions.
        """
        return replace(self._known, per_command=round(self._per_command), answers_dropped=self._dropped)

    def spent(self, state_bytes: int, commands: int, answers_dropped: int) -> None:
        """Counts the state bytes and dropped answers of a committed transaction."""
        self._per_command += self._SHARE * (state_bytes / commands - self._per_command)
        self._dropped += answers_dropped

    def suspect(self) -> None:
        """Has the next commands decided one by one: one took longer than a transaction, or its records are refused."""
        self.isolated_remaining = self.SMALL

    def consume_isolated(self) -> None:
        """Counts one command that was decided alone."""
        self.isolated_remaining = max(0, self.isolated_remaining - 1)

    def record_survived(self, decided: int) -> None:
        """Counts commands that the process survived, of any partition, so batches do not stay small for a quiet one."""
        self.reduced_batch_remaining = max(0, self.reduced_batch_remaining - decided)
