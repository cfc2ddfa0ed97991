"""The life of a generation that micro-batches fold: created, continued, promoted, given up when lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.engine.views.claims import claimed, is_claimable, is_known, may_fold, way_back
from leftfold.engine.views.generations import Identities, change, followed, now, open_generation, other_log, topics_of
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, Registry, covered
from leftfold.ports.protocols import LogReader, ViewStore

__all__ = ["GenerationLifecycle", "MicroBatchDriver", "OutOfStep"]


RunJob = Callable[[MicroBatchTask], Sequence[BatchResult]]
"""Runs the tasks of a batch somewhere."""


class OutOfStep(Exception):
    """Another process has written, or the store went back in time: the next run begins at the checkpoints."""


class MicroBatchDriver:
    """Takes one generation from batch to batch.

    Args:
        checkpoints: as read when the run began. run: its name, in every token that it writes.
        job: how tasks work. max_parked: how many keys may be parked before the view stops.
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
        """Where the run must begin to read for this generation."""
        return covered(self.generation, self.checkpoints)

    def fold(self, batch: int, span: tuple[Position, Position], run: RunJob, store: ViewStore) -> None:
        """Folds a batch that holds what is between two positions; every checkpoint moves, touched or not.

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
            if result.checkpoint is not None:
                self.checkpoints[result.bucket] = result.checkpoint
            whole |= {(t, p): o for t, ps in result.whole.offsets.items() for p, o in ps.items()}
        topics = self.generation.topics.items()
        reached = {t: {p: whole.get((t, p), job.expected(t, p)) for p in range(count)} for t, count in topics}
        self._move(Position(reached), job.token, store)
        self._done = Position(reached)

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
        """Moves the checkpoints that no task has moved: of buckets that nothing touched."""
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
            raise OutOfStep("the marks of buckets that nothing touched were written by somebody else")
        self.checkpoints |= {flush.bucket: flush.checkpoint for flush in flushes}


Report = Callable[[str, Mapping[str, Any]], None]


class GenerationLifecycle:
    """What of a view must be folded, for an engine that starts again whenever that changes.

    Args:
        log: told the ends of topics; nothing is read from it.
        report: told what an operator should know: (what, details).
        fold: says which code folds; what another code has claimed is left alone.
        check: given the topics before a generation is begun; raises when their first events cannot be read.
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
        self._fold, self._idle = fold, set[tuple[str, str]]()
        self._ids, self._foreign = Identities(log), set[str]()
        self._started = set[str]() if started is None else started
        self._is_new = view.name not in self._started and not is_known(store.registry(view.name), view, fold)
        self._targets: dict[str, Position] = {}
        self._told: dict[str, set[str]] = {}

    def look(self) -> dict[str, Generation]:
        """The generations to be brought along now; a first one is begun where there is none."""
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
        found = {id_: generation for id_, generation in found.items() if self._is_of_this_log(generation)}
        if registry.live_of(self.view.hash) is None:
            for generation in found.values():
                if generation.id not in self._targets:
                    self._targets[generation.id] = self._log.ends(generation.topics)
        return found

    def _is_of_this_log(self, generation: Generation) -> bool:
        """Whether it was folded from the topics that are there now; if not, that is told once."""
        why = other_log(generation, self._ids.of(generation.topics))
        if why and generation.id not in self._foreign and generation.phase is not Phase.KEPT:
            self._foreign.add(generation.id)
            self._report("view stopped", {"view": self.view.name, "why": why})
        return not why

    def _claimed(self, registry: Registry) -> Registry:
        """Claims what this code may fold, as a projector that starts does; tells once of what another code folds."""
        for generation in list(registry.generations.values()):
            mine = generation.hash == self.view.hash and is_claimable(generation, self._fold)
            if mine and (self._is_new or not generation.fold):
                registry = change(self._store, self.view.name, lambda r, g=generation: claimed(r, g, self._fold))  # type: ignore[misc]
        self._is_new = False
        self._started.add(self.view.name)
        for generation in followed(registry, self.view).values():
            told = generation.id, generation.fold
            if generation.phase is not Phase.KEPT and not may_fold(generation, self._fold) and told not in self._idle:
                self._idle.add(told)
                details = {"view": self.view.name, "generation": generation.id, "folded by": generation.fold}
                self._report("standing by", {**details, "do": way_back(generation, self._fold)})
        return registry

    def checkpoints(self, generation: Generation) -> dict[int, Checkpoint] | None:
        """Its checkpoints; None = it is another code's now, or has lost some, and is given up."""
        checkpoints = self._store.checkpoints(generation)
        if len(checkpoints) == generation.buckets:
            # Behind the checkpoints: a claim made before they were read is seen, and a later one changes their tokens.
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
        """Tells of keys newly parked, and points at the generation once it has reached what was there at first."""
        self._tell_parked(generation, checkpoints)
        target = self._targets.get(generation.id)
        if target is None or not covered(generation, checkpoints).covers(target):
            return
        del self._targets[generation.id]
        change(
            self._store,
            self.view.name,
            lambda r: (
                r if r.live_of(generation.hash) or generation.id not in r.generations else r.pointed(generation, now())
            ),
        )
        self._report("generation live", {"view": self.view.name, "generation": generation.id})

    def _tell_parked(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        parked = {key: why for checkpoint in checkpoints.values() for key, why in checkpoint.parked.items()}
        told = self._told.get(generation.id, set())
        for key in parked.keys() - told:
            why, place = parked[key], f"{parked[key].topic}[{parked[key].partition}]@{parked[key].offset}"
            details = {"view": self.view.name, "generation": generation.id, "key": key, "at": place, "why": why.error}
            self._report("parked", details)
        self._told[generation.id] = set(parked)
