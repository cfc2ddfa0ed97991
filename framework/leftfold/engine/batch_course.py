"""One generation through the micro-batches of one run: what its marks are, and what each batch is to do to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.batch_job import BatchJob
from leftfold.engine.batch_result import BatchResult
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.follower import MAX_PARKED
from leftfold.errors import ContractError
from leftfold.flush import BucketFlush, Generation, Mark, covered
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["BatchCourse", "OutOfStep", "RunJob"]

RunJob = Callable[[BatchJob], Sequence[BatchResult]]
"""Runs the tasks of a batch somewhere."""


class OutOfStep(Exception):
    """Somebody else has written, or the store went back in time: the run ends, and the next begins at the marks."""


class BatchCourse:
    """Takes one generation from batch to batch.

    Args:
        marks: as read when the run began. run: its name, in every token that it writes.
        job: how tasks work. max_parked: how many keys may be parked before the view stops.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        marks: Mapping[int, Mark],
        run: str,
        *,
        open_store: Callable[[], ViewStore],
        open_log: OpenBulkLog,
        job: type[BatchJob] = BatchJob,
        max_parked: int = MAX_PARKED,
    ) -> None:
        self.view, self.generation, self.marks = view, generation, dict(marks)
        self._run, self._open_store, self._open_log, self._job = run, open_store, open_log, job
        self._max_parked = max_parked
        self._done: Position | None = None

    def position(self) -> Position:
        """Where the run must begin to read for this generation."""
        return covered(self.generation, self.marks)

    def fold(self, batch: int, span: tuple[Position, Position], run: RunJob, store: ViewStore) -> None:
        """Folds a batch that holds what is between two positions; every mark moves, touched or not.

        Raises:
            OutOfStep: nothing, or some buckets, were written.
            ContractError: the view cannot go on.
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
            if result.mark is not None:
                self.marks[result.bucket] = result.mark
            whole |= {(t, p): o for t, ps in result.whole.offsets.items() for p, o in ps.items()}
        topics = self.generation.topics.items()
        reached = {t: {p: whole.get((t, p), job.expected(t, p)) for p in range(count)} for t, count in topics}
        self._move(Position(reached), job.token, store)
        self._done = Position(reached)

    def _planned(self, batch: int, span: tuple[Position, Position]) -> BatchJob:
        begin, end = span
        done = self._done if self._done is not None else begin
        return self._job(
            self.view,
            self.generation,
            self._open_store,
            self._open_log,
            self._run,
            batch,
            {bucket: mark.token for bucket, mark in self.marks.items()},
            done,
            begin,
            end,
            {bucket: len(mark.parked) for bucket, mark in self.marks.items()},
            self._max_parked,
        )

    def _move(self, reached: Position, token: str, store: ViewStore) -> None:
        """Moves the marks that no task has moved: of buckets that nothing touched."""
        flushes, rows = [], self.view.rows
        for bucket, mark in self.marks.items():
            here = reached.only(self.generation.topics, bucket if self.generation.stream_keyed else None)
            if not mark.position.covers(here):
                moved = replace(mark, position=mark.position | here, token=token)
                flush = BucketFlush(self.generation, bucket, mark.token, moved, rows.columns, rows.indexes)
                flushes.append(flush)
        if not flushes:
            return
        if not store.flush(flushes):
            raise OutOfStep("the marks of buckets that nothing touched were written by somebody else")
        self.marks |= {flush.bucket: flush.mark for flush in flushes}
