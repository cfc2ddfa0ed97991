"""Folds micro-batches into a generation: plans their tasks, and moves the checkpoints that no task has moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, covered
from leftfold.ports.protocols import ViewStore

__all__ = ["MicroBatchDriver", "OutOfStep"]


RunJob = Callable[[MicroBatchTask], Sequence[BatchResult]]
"""Runs the tasks of a batch."""


class OutOfStep(Exception):
    """Another process has written, or the store went back in time: the next run starts from the checkpoints."""


class MicroBatchDriver:
    """Folds micro-batches into one generation.

    Args:
        checkpoints: as read when the run began.
        run: its name, in every token that it writes.
        job: the class of the tasks.
        max_parked: how many keys may be parked before the view stops.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        checkpoints: Mapping[int, Checkpoint],
        run: str,
        *,
        open_store: Callable[[], ViewStore],
        open_log: OpenBulkLog,
        job: type[MicroBatchTask] = MicroBatchTask,
        max_parked: int = MAX_PARKED,
    ) -> None:
        self.view, self.generation, self.checkpoints = view, generation, dict(checkpoints)
        self._run, self._open_store, self._open_log, self._job = run, open_store, open_log, job
        self._max_parked = max_parked
        self._done: Position | None = None

    def position(self) -> Position:
        """Where the run must start to read for this generation."""
        return covered(self.generation, self.checkpoints)

    def fold(self, batch: int, span: tuple[Position, Position], run: RunJob, store: ViewStore) -> None:
        """Folds the batch between two positions; every checkpoint moves, changed or not.

        Raises:
            OutOfStep: no bucket was written, or only some.
            ContractError: the view cannot continue.
        """
        job = self._planned(batch, span)
        results = run(job)
        stopped = next((result.stopped for result in results if result.stopped), "")
        if stopped:
            raise ContractError(f"view {self.view.name} stops: {stopped}")
        trouble = next((result.trouble for result in results if result.trouble), "")
        if trouble:
            raise OutOfStep(trouble)
        whole: dict[tuple[str, int], int] = {}
        for result in results:
            if result.checkpoint is not None:
                self.checkpoints[result.bucket] = result.checkpoint
            whole |= result.whole.by_partition()
        topics = self.generation.topics.items()
        reached = Position.of({(t, p): whole.get((t, p), job.expected(t, p)) for t, n in topics for p in range(n)})
        self._move(reached, job.token, store)
        self._done = reached

    def _planned(self, batch: int, span: tuple[Position, Position]) -> MicroBatchTask:
        begin, end = span
        done = self._done if self._done is not None else begin
        return self._job(
            self.view,
            self.generation,
            self._open_store,
            self._open_log,
            self._run,
            batch,
            {bucket: checkpoint.token for bucket, checkpoint in self.checkpoints.items()},
            done,
            begin,
            end,
            {bucket: len(checkpoint.parked) for bucket, checkpoint in self.checkpoints.items()},
            self._max_parked,
        )

    def _move(self, reached: Position, token: str, store: ViewStore) -> None:
        """Moves the checkpoints of buckets without changes, which no task has moved."""
        flushes, rows = [], self.view.rows
        for bucket, checkpoint in self.checkpoints.items():
            here = reached.only(self.generation.topics, bucket if self.generation.stream_keyed else None)
            if not checkpoint.position.covers(here):
                moved = replace(checkpoint, position=checkpoint.position | here, token=token)
                flush = BucketFlush(self.generation, bucket, checkpoint.token, moved, rows.columns, rows.indexes)
                flushes.append(flush)
        if not flushes:
            return
        if not store.flush(flushes):
            raise OutOfStep("the checkpoints of unchanged buckets were written by another process")
        self.checkpoints |= {flush.bucket: flush.checkpoint for flush in flushes}
