"""A rebuild: folds a new generation of a view from the whole log, resumes after a kill, and promotes it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.engine.rebuild.planner import RebuildPlan, plan_rebuild, plan_to
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally, run_pass_locally
from leftfold.engine.views.cleanup import discard, sweep
from leftfold.engine.views.code_claims import active_projectors, member_names
from leftfold.engine.views.generations import (
    BUCKETS,
    change,
    log_mismatch,
    note_cut,
    open_generation,
    topic_ids,
    topics_of,
)
from leftfold.engine.views.leases import check_attempt, check_sole_member, exclusive_lease, members, take_over
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ConfigurationError
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkStore, OpenBulkLog, OpenBulkSink
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry
from leftfold.ports.protocols import LogReader

__all__ = [
    "PassRunner", "Rebuild", "RebuildOptions", "Runner", "StartedRebuild", "rebuild_together",
    "unfinished",
]  # fmt: skip


def unfinished(store: BulkStore, view: View[Any, Any], options: RebuildOptions) -> Generation | None:
    """The newest unfinished generation of a rebuild with the same code and options.

    One whose rebuild still holds its lease is left to it.
    """
    if options.fresh or not options.fold:
        return None
    leased = members(store, names.rebuilds(view.name))
    found = [
        as_it_is
        for generation in store.registry(view.name).generations.values()
        if (generation.hash, generation.fold, generation.name) == (view.hash, options.fold, options.pin)
        and generation.phase in (Phase.BULK, Phase.SEALED)
        and generation.ends.offsets
        and generation.attempt not in leased
        and (as_it_is := _as_it_is(store, generation)) is not None
    ]
    return max(found, key=lambda generation: generation.created, default=None)


def _as_it_is(store: BulkStore, generation: Generation) -> Generation | None:
    """A generation with the phase of its checkpoints, which are sealed before the registry. None = it is incomplete."""
    checkpoints = store.checkpoints(generation)
    phases = {checkpoint.phase for checkpoint in checkpoints.values()}
    return generation.in_phase(phases.pop()) if len(checkpoints) == generation.buckets and len(phases) == 1 else None


def resumed(plan: RebuildPlan, generation: Generation, store: BulkStore) -> RebuildPlan:
    """The rest of a plan: the same ends as before, without the partitions whose buckets are complete."""
    whole = store.finished(generation).keys() if generation.stream_keyed else frozenset[int]()
    tasks = []
    for task in plan.tasks:
        parts = (part._replace(end=generation.ends.next_offset(part.topic, part.partition)) for part in task)
        if left := tuple(part for part in parts if part.partition not in whole and part.start < part.end):
            tasks.append(left)
    return replace(plan, ends=generation.ends, tasks=tuple(tasks), buckets=generation.buckets)


Runner = Callable[[BulkJob, RebuildPlan, ProgressCallback], list[BucketResult]]
"""Runs a job's tasks and returns one result per bucket that has any items."""


@dataclass(frozen=True)
class RebuildOptions:
    """The options of a rebuild.

    Args:
        cores: tasks at once.
        buckets: of the new generation, unless it is stream-keyed.
        keep: seconds for which the previous generation stays, followed by projectors, for a rollback; 0 removes it at
            the swap.
        swap_anyway: goes live even if the previous generation's rows differ.
        hold: stops before the swap: projectors follow the new generation, but readers do not see it until it is
            promoted.
        pin: builds a generation of this name that stays where the plan ends, and swaps nothing.
        fold: the hash of the fold code; a rebuild of the same code resumes an interrupted one. '' = never.
        fresh: starts from the beginning in any case.
        patience: seconds for a projector to take the new generation over.
        timeout: seconds for catching up.
        pause_stream: a stream that keeps a computed view stands by until this rebuild of it has ended.
    """

    cores: int = 2
    buckets: int = BUCKETS
    keep: float = 600.0
    swap_anyway: bool = False
    hold: bool = False
    pin: str = ""
    fold: str = ""
    fresh: bool = False
    max_parked: int = MAX_PARKED
    patience: float = 1.5
    timeout: float = 600.0
    pause_stream: bool = True


class Rebuild:
    """The rebuild of one view.

    Args:
        open_log, open_sink: called in tasks.
        open_reader: called here, for catching up.
        run: runs the tasks; in this process by default.
        report: called with the progress a few times a second.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: BulkStore,
        *,
        open_log: OpenBulkLog,
        open_reader: Callable[[], LogReader],
        open_sink: OpenBulkSink,
        run: Runner = run_locally,
        options: RebuildOptions = RebuildOptions(),  # frozen
        report: ProgressReport = lambda progress: None,
    ) -> None:
        self.view, self.options = view, options
        self._store, self._run, self._report = store, run, report
        self._open_log, self._open_reader, self._open_sink = open_log, open_reader, open_sink

    def plan(self, as_of: Position | None = None) -> RebuildPlan:
        """A plan of what a rebuild would read now, and what it would cost.

        Args:
            as_of: where to stop, moved back out of a decision; None = the stable end of the log.
        """
        cores, buckets = self.options.cores, self.options.buckets
        with closing(self._open_log()) as log:
            return plan_rebuild(self.view, log, cores=cores, buckets=buckets, as_of=as_of)

    def run(self, plan: RebuildPlan | None = None) -> RebuildResult:
        """Builds, catches up and swaps; resumes what was finished before an interruption.

        Raises:
            ContractError: an event cannot be read or folded and cannot be parked either.
            Fenced: another process removed or took over the new generation, or another one went live meanwhile.
            InfrastructureError: another process rebuilds this view; or the log, the store or Spark is not reachable, or
                catching up took too long.
        """
        with self.begun(plan) as begun:
            self.fold(begun)
            return self.swap(begun)

    def like(self, plan: RebuildPlan) -> RebuildPlan:
        """The plan of another view that reads the same topics, for this view."""
        return plan_to(self.view, plan.topics, plan.ends, cores=self.options.cores, buckets=self.options.buckets)

    def fold(self, begun: StartedRebuild) -> None:
        """Fills and seals the generation, if that is not done yet."""
        if begun.job is None:
            return
        begun.watch.begin("fold", begun.plan.events)
        results = self._run(begun.job, begun.plan, begun.watch.tell)
        begun.events = begun.watch.done
        self.seal(begun, results)

    @contextmanager
    def begun(self, plan: RebuildPlan | None = None) -> Iterator[StartedRebuild]:
        """A generation to fill while the block runs, under an exclusive lease on the view's rebuilds."""
        name, watch = self.view.name, Stopwatch(self._report)
        group, what = names.rebuilds(name), f"view {name} is being rebuilt"
        with exclusive_lease(self._store, group, what) as me:
            watch.begin("plan")
            self._check_projectors()
            plan = None if self._pause_stream() else plan
            ids = self._ids()
            before = unfinished(self._store, self.view, self.options)
            before = None if before and (log_mismatch(before, ids) or self._cut(before)) else before
            if before and self.options.pin:  # which stays where its plan ends
                plan = plan or self.plan()
                before = before if before.ends == plan.ends else None
            sweep(self._store, self.view, self.options.keep, but=before)
            plan = resumed(plan or self.plan(), before, self._store) if before else plan or self.plan()
            # Planning may have taken long, or this process was paused during it.
            check_sole_member(self._store, group, me, what)
            generation = take_over(self._store, before, me) if before else self._open(plan, ids, me)
            try:
                yield self._begun(generation, plan, watch)
            except BaseException as error:
                discard(self._store, generation, error, resumable=bool(self.options.fold))
                raise

    def seal(self, begun: StartedRebuild, results: Sequence[BucketResult]) -> None:
        """Ends the bulk load with the results of its job."""
        if begun.job is None:
            return
        everything = [*begun.whole.values(), *results]
        begun.job.check_parked([parked for result in everything for parked in result.parked.values()])
        begun.watch.begin("seal")
        check_attempt(self._store.registry(self.view.name), begun.generation)
        self._store.seal(begun.generation, sealed_marks(begun.generation, begun.plan.ends, everything))
        if not self.options.pin:
            # From here on projectors follow it, which they must not do with a pinned one.
            sealed = begun.generation.in_phase(Phase.SEALED)

            def seal(registry: Registry) -> Registry:
                check_attempt(registry, sealed)
                return registry.with_generation(sealed)

            change(self._store, self.view.name, seal)

    def swap(self, begun: StartedRebuild) -> RebuildResult:
        """Brings a sealed generation up to the live one and swaps it in, or pins it."""
        sealed = begun.generation.in_phase(Phase.SEALED)
        swap = Swap(self.view, sealed, self._store, self._open_reader, self.options, begun.watch)
        return swap.pin(begun.events) if self.options.pin else self._go_live(swap, begun)

    def _go_live(self, swap: Swap, begun: StartedRebuild) -> RebuildResult:
        return swap.run(self._stable_ends(begun.plan), begun.events)

    def _cut(self, generation: Generation) -> str:
        """Where the log ends before what a generation has folded; '' = it does not."""
        with closing(self._open_reader()) as log:
            return note_cut(self._store, generation, self._store.checkpoints(generation), log)

    def _ids(self) -> dict[str, str]:
        with closing(self._open_log()) as log:
            return topic_ids(log, topics_of(self.view, log.partitions))

    def _open(self, plan: RebuildPlan, ids: Mapping[str, str], attempt: str) -> Generation:
        return open_generation(
            self._store,
            self.view,
            plan.topics,
            Phase.BULK,
            plan.buckets,
            ends=plan.ends,
            name=self.options.pin,
            folds=(self.options.fold,) if self.options.fold else (),
            ids=ids,
            attempt=attempt,
        )

    def _check_projectors(self) -> None:
        """Checks that projectors of this code can keep a new live generation up to date.

        Raises:
            ConfigurationError: only projectors of other code run, so it would not be folded any further.
        """
        fold, view = self.options.fold, self.view
        if not fold or self.options.hold or self.options.pin or self.options.swap_anyway:
            return
        found = active_projectors(self._store, view.name, view.hash, [fold])
        if found.members and not found.of(fold):
            raise ConfigurationError(
                f"view {view.name}: its projectors run other code than this ({member_names(found.members)}) and would "
                f"not fold what this code builds; hold it back until one of it runs: leftfold rebuild "
                f"{view.name} --hold, then, with this code, leftfold run {view.name}, then leftfold promote {view.name}"
            )

    def _begun(self, generation: Generation, plan: RebuildPlan, watch: Stopwatch) -> StartedRebuild:
        if generation.phase is not Phase.BULK:
            return StartedRebuild(self, generation, plan, watch)
        whole = self._store.finished(generation)
        left = {bucket: plan.ends for bucket in range(generation.buckets) if bucket not in whole} if whole else None
        job = BulkJob(
            self.view, generation, plan.ranges, self._open_log, self._open_sink, self.options.max_parked, left
        )
        return StartedRebuild(self, generation, plan, watch, job, whole)

    def _pause_stream(self) -> bool:
        """Makes the stream stand by that keeps the live generation, if any; returns whether there was one."""
        return False

    def _stable_ends(self, plan: RebuildPlan) -> Position:
        with closing(self._open_log()) as log:
            return log.stable_ends(plan.topics)


@dataclass
class StartedRebuild:
    """A rebuild under way: its job (None = no events are left to fold), and the buckets completed before."""

    rebuild: Rebuild
    generation: Generation
    plan: RebuildPlan
    watch: Stopwatch
    job: BulkJob | None = None
    whole: Mapping[int, BucketResult] = field(default_factory=dict)
    events: int = 0


def sealed_marks(generation: Generation, ends: Position, results: Sequence[BucketResult]) -> Mapping[int, Checkpoint]:
    """The first checkpoints of a generation built up to these ends; a bucket without a result is empty."""
    by_bucket = {result.bucket: result for result in results}
    return {
        bucket: by_bucket.get(bucket, BucketResult(bucket)).checkpoint(
            ends.only(generation.topics, bucket if generation.stream_keyed else None), secrets.token_hex(8)
        )
        for bucket in range(generation.buckets)
    }


PassRunner = Callable[[Sequence[BulkJob], RebuildPlan, ProgressCallback], list[list[BucketResult]]]
"""Runs several jobs over the same ranges; returns each job's results, one per bucket that has any items."""


def rebuild_together(
    rebuilds: Sequence[Rebuild], plan: RebuildPlan, run: PassRunner = run_pass_locally
) -> list[RebuildResult]:
    """Rebuilds several views that read the same topics, reading each partition once.

    A rebuild that resumes an interrupted one is run by itself at the end: the rest of its plan is another part of the
    log.

    Raises:
        LeftfoldError: what `Rebuild.run` raises. What was swapped in or held before stays.
    """
    with ExitStack() as stack:
        begun = [stack.enter_context(rebuild.begun(rebuild.like(plan))) for rebuild in rebuilds]
        new = [one for one in begun if one.job is not None and not one.whole and one.plan.ends == plan.ends]
        if new:
            _fold(new, plan, run)
        for one in begun:
            if one.job is not None and one not in new:
                one.rebuild.fold(one)
        return [one.rebuild.swap(one) for one in begun]


def _fold(begun: Sequence[StartedRebuild], plan: RebuildPlan, run: PassRunner) -> None:
    """Folds all of them in one pass; the first one's progress is that of all."""
    watch = begun[0].watch
    for one in begun:
        one.watch.end()
    watch.begin("fold", plan.events)
    jobs = [one.job for one in begun if one.job is not None]
    results = run(jobs, plan, watch.tell)
    watch.end()
    events, seconds = watch.done, watch.seconds["fold"]  # to seal the first one begins another phase of its watch
    for one, found in zip(begun, results, strict=True):
        one.events, one.watch.seconds["fold"] = events, seconds
        one.rebuild.seal(one, found)
