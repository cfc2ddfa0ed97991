"""Micro-batches that lack what the real ones have, for tests of what that is good for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leftfold.engine.streaming.microbatch_task import MicroBatchTask, MicroBatchWriter
from leftfold.engine.views.folded_rows import RowAddress
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Snapshot
from leftfold.ports.protocols import ViewStore

__all__ = ["Cutting", "Forgetful", "Trusting"]


class Trusting(MicroBatchTask):
    """Takes every checkpoint for the one that it knows."""

    def in_step(self, bucket: int, checkpoint: Checkpoint) -> bool:
        return True


class Forgetful(MicroBatchTask):
    """Folds whatever a batch holds, as if a checkpoint were right about that."""

    def is_done(self, checkpoint: Checkpoint, reached: Position) -> bool:
        return False

    def writer(self, store: ViewStore, places: Sequence[RowAddress], read: Snapshot, bucket: int) -> MicroBatchWriter:
        checkpoints = {
            number: replace(checkpoint, position=Position()) for number, checkpoint in read.checkpoints.items()
        }
        return super().writer(store, places, replace(read, checkpoints=checkpoints), bucket)


class Cutting(MicroBatchTask):
    """Folds as far as a batch goes, in the middle of a decision or not."""

    def whole(self, ends: Sequence[bool]) -> int:
        return len(ends)
