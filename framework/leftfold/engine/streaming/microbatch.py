"""The lifecycle of a generation that micro-batches fold: created, continued, promoted, dropped when lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.engine.views.code_claims import claimed, is_claimable, names_fold
from leftfold.engine.views.generations import (
    GenerationReporter,
    Identities,
    change,
    followed,
    open_generation,
    promote_first,
    topics_of,
)
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, Registry, covered
from leftfold.ports.protocols import LogReader, Report, ViewStore

__all__ = ["GenerationLifecycle", "MicroBatchDriver", "OutOfStep"]


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


class GenerationLifecycle:
    """Finds the generations of a view that must be folded, for an engine that restarts when they change.

    Args:
        log: asked for the ends of topics; no record is read from it.
        report: called with (what, details) for the operator.
        fold: the hash of the fold code; generations that another code has claimed are left alone.
        check: called with the topics before a generation is created; raises when their first events cannot be read.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        log: LogReader,
        report: Report,
        *,
        fold: str = "",
        started: set[str] | None = None,
        check: Callable[[Mapping[str, int]], None] = lambda topics: None,
    ) -> None:
        self.view, self._store, self._log, self._report, self._check = view, store, log, report, check
        self._fold, self._ids, self._reporter = fold, Identities(log), GenerationReporter(report)
        self._started = set[str]() if started is None else started
        self._is_new = view.name not in self._started and not names_fold(store.registry(view.name), view, fold)
        self._targets: dict[str, Position] = {}

    def look(self) -> dict[str, Generation]:
        """The generations to fold now; creates the first one where there is none."""
        registry = self._claimed(self._store.registry(self.view.name))
        found = followed(registry, self.view, self._fold)
        if not found and registry.live_of(self.view.hash) is None:
            topics = topics_of(self.view, self._log.partitions)
            self._check(topics)
            ids = self._ids.of(topics)
            codes = (self._fold,) if self._fold else ()
            begun = open_generation(self._store, self.view, topics, Phase.SEALED, folds=codes, ids=ids)
            self._report("generation begun", {"view": self.view.name, "generation": begun.id})
            found = {begun.id: begun}
        found = {i: g for i, g in found.items() if self._reporter.is_of_log(g, self._ids.of(g.topics))}
        if registry.live_of(self.view.hash) is None:
            for generation in found.values():
                if generation.id not in self._targets:
                    self._targets[generation.id] = self._log.ends(generation.topics)
        return found

    def _claimed(self, registry: Registry) -> Registry:
        """Claims what this code may fold, as a projector that starts does; reports once what other code folds."""
        for generation in list(registry.generations.values()):
            mine = generation.hash == self.view.hash and is_claimable(generation, self._fold)
            if mine and (self._is_new or not generation.fold):
                registry = change(self._store, self.view.name, lambda r, g=generation: claimed(r, g, self._fold))  # type: ignore[misc]
        self._is_new = False
        self._started.add(self.view.name)
        self._reporter.standing_by(self.view, registry, self._fold)
        return registry

    def checkpoints(self, generation: Generation) -> dict[int, Checkpoint] | None:
        """The checkpoints of a generation; None = other code has claimed it, or some are lost and it is dropped."""
        checkpoints = self._store.checkpoints(generation)
        if len(checkpoints) == generation.buckets:
            # After the checkpoints: a claim made before they were read is seen, and a later one changes their tokens.
            return (
                checkpoints
                if generation.id in followed(self._store.registry(self.view.name), self.view, self._fold)
                else None
            )
        lost = sorted(set(range(generation.buckets)) - set(checkpoints))
        self._report("generation lost", {"view": self.view.name, "generation": generation.id, "buckets": lost})
        change(self._store, self.view.name, lambda r: r.without(generation.id))
        self._store.unlink(generation)
        return None

    def reached(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Reports newly parked keys, and makes the generation live once it has reached its first target."""
        self._reporter.parked(generation, checkpoints)
        target = self._targets.get(generation.id)
        if target is None or not covered(generation, checkpoints).covers(target):
            return
        del self._targets[generation.id]
        promote_first(self._store, generation)
        self._report("generation live", {"view": self.view.name, "generation": generation.id})
