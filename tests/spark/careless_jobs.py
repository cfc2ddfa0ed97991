"""Micro-batches that lack what the real ones have, for tests of what that is good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leftfold.engine.streaming.microbatch_task import BatchFollower, BatchJob
from leftfold.engine.views.row_folding import Place
from leftfold.model.position import Position
from leftfold.ports.flush import Mark, Snapshot
from leftfold.ports.protocols import ViewStore

__all__ = ["Cutting", "Forgetful", "Trusting"]


class Trusting(BatchJob):
    """Takes every mark for the one that it knows."""

    def in_step(self, bucket: int, mark: Mark) -> bool:
        return True


class Forgetful(BatchJob):
    """Folds whatever a batch holds, as if a checkpoint were right about that."""

    def is_done(self, mark: Mark, reached: Position) -> bool:
        return False

    def follower(self, store: ViewStore, places: Sequence[Place], read: Snapshot, bucket: int) -> BatchFollower:
        marks = {number: replace(mark, position=Position()) for number, mark in read.marks.items()}
        return super().follower(store, places, replace(read, marks=marks), bucket)


class Cutting(BatchJob):
    """Folds as far as a batch goes, in the middle of a decision or not."""

    def whole(self, ends: Sequence[bool]) -> int:
        return len(ends)
