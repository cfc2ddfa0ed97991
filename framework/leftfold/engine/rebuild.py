"""A rebuild: a new generation of a view from the whole log, beside the one that readers see, then the swap."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from leftfold import names
from leftfold.engine.as_of import between_decisions
from leftfold.engine.at_work import at_work, check_alone
from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_local import run_here
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkStore, OpenBulkSink
from leftfold.engine.claims import attendance, shown
from leftfold.engine.follower import MAX_PARKED
from leftfold.engine.generations import BUCKETS, change, open_generation, topics_of
from leftfold.engine.hole import check_whole
from leftfold.engine.plan import RebuildPlan, plan_rebuild, plan_to
from leftfold.engine.rebuild_attempt import check_attempt, taken_over
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.rebuild_removal import abandon, sweep
from leftfold.engine.rebuild_result import RebuildResult
from leftfold.engine.rebuild_resume import resumed, unfinished
from leftfold.engine.rebuild_swap import Swap
from leftfold.engine.same_log import known_ids, other_log
from leftfold.errors import ConfigurationError
from leftfold.flush import Generation, Mark, Phase, Registry
from leftfold.ports import LogReader
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Begun", "Rebuild", "RebuildOptions", "Runner"]

Runner = Callable[[BulkJob, RebuildPlan, Tell], list[BucketResult]]
"""Runs a job's tasks somewhere and returns one result per bucket that has any items."""


@dataclass(frozen=True)
class RebuildOptions:
    """What an operator may choose.

    Args:
        cores: tasks at once. buckets: of the new generation, unless it is stream-keyed.
        keep: seconds for which the predecessor stays, followed by tails, for a rollback; 0 removes it at the swap.
        swap_anyway: goes live even if the predecessor's rows differ.
        hold: stops before the swap: tails follow the new generation, and nobody reads it until it is promoted.
        pin: builds a generation of this name that stays where the plan ends, and swaps nothing.
        fold: says which code folds; a rebuild of the same code goes on where another one ended. '' = never.
        fresh: begins anew all the same.
        patience: seconds for a tail to take the new generation over. timeout: seconds for catching up.
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


class Rebuild:
    """Rebuilds one view.

    Args:
        open_log, open_sink: made in tasks. open_reader: made here, for catching up.
        run: where tasks run; in this process unless said otherwise.
        report: told about progress a few times a second.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: BulkStore,
        *,
        open_log: OpenBulkLog,
        open_reader: Callable[[], LogReader],
        open_sink: OpenBulkSink,
        run: Runner = run_here,
        options: RebuildOptions = RebuildOptions(),  # frozen
        report: Report = lambda progress: None,
    ) -> None:
        self.view, self.options = view, options
        self._store, self._run, self._report = store, run, report
        self._open_log, self._open_reader, self._open_sink = open_log, open_reader, open_sink

    def plan(self, as_of: Position | None = None) -> RebuildPlan:
        """What would be read now, and what that would cost.

        Args:
            as_of: where to stop, moved back out of a decision; None = where the log is stable now.
        """
        cores, buckets = self.options.cores, self.options.buckets
        with closing(self._open_log()) as log:
            if as_of is None:
                return plan_rebuild(self.view, log, cores=cores, buckets=buckets)
            topics = topics_of(self.view, log.partitions)
            ends = between_decisions(log, as_of.only(topics))
            plan = plan_to(self.view, topics, ends, cores=cores, buckets=buckets)
            check_whole(log, plan.ranges)
            return plan

    def run(self, plan: RebuildPlan | None = None) -> RebuildResult:
        """Builds, catches up and swaps; what was done before an interruption is gone on with.

        Raises:
            ContractError: an event cannot be read or folded and cannot be parked either.
            Fenced: another process removed or took over the new generation, or another one went live meanwhile.
            InfrastructureError: somebody else rebuilds this view; or the log, the store or Spark is not there, or
                catching up took too long.
        """
        with self.begun(plan) as begun:
            self.fold(begun)
            return self.swap(begun)

    def like(self, plan: RebuildPlan) -> RebuildPlan:
        """The plan of a view that reads the same topics, as one of this view."""
        return plan_to(self.view, plan.topics, plan.ends, cores=self.options.cores, buckets=self.options.buckets)

    def fold(self, begun: Begun) -> None:
        """Fills and seals the generation, if that is not done yet."""
        if begun.job is None:
            return
        begun.watch.begin("fold", begun.plan.events)
        results = self._run(begun.job, begun.plan, begun.watch.tell)
        begun.events = begun.watch.done
        self.seal(begun, results)

    @contextmanager
    def begun(self, plan: RebuildPlan | None = None) -> Iterator[Begun]:
        """A generation to be filled while the block runs; nobody else rebuilds the view meanwhile."""
        name, watch = self.view.name, Stopwatch(self._report)
        group, what = names.rebuilds(name), f"view {name} is being rebuilt"
        with at_work(self._store, group, what) as me:
            watch.begin("plan")
            self._check_tails()
            ids = self._ids()
            before = unfinished(self._store, self.view, self.options)
            before = None if before and other_log(before, ids) else before
            sweep(self._store, self.view, self.options.keep, but=before)
            plan = resumed(plan or self.plan(), before, self._store) if before else plan or self.plan()
            # Planning may have taken long, or this process was paused in it.
            check_alone(self._store, group, me, what)
            generation = taken_over(self._store, before, me) if before else self._open(plan, ids, me)
            try:
                yield self._begun(generation, plan, watch)
            except BaseException as error:
                abandon(self._store, generation, error, resumable=bool(self.options.fold))
                raise

    def seal(self, begun: Begun, results: Sequence[BucketResult]) -> None:
        """Ends the bulk load with the results of its job."""
        if begun.job is None:
            return
        everything = [*begun.whole.values(), *results]
        begun.job.check_parked([parked for result in everything for parked in result.parked.values()])
        begun.watch.begin("seal")
        check_attempt(self._store.registry(self.view.name), begun.generation)
        self._store.seal(begun.generation, sealed_marks(begun.generation, begun.plan.ends, everything))
        if not self.options.pin:
            # From here on tails follow it, which a pinned one must not see.
            sealed = begun.generation.in_phase(Phase.SEALED)

            def seal(registry: Registry) -> Registry:
                check_attempt(registry, sealed)
                return registry.with_generation(sealed)

            change(self._store, self.view.name, seal)

    def swap(self, begun: Begun) -> RebuildResult:
        """Brings a sealed generation up to the live one and puts it in its place, or behind its name."""
        sealed = begun.generation.in_phase(Phase.SEALED)
        swap = Swap(self.view, sealed, self._store, self._open_reader, self.options, begun.watch)
        if self.options.pin:
            return swap.pin(begun.events)
        return self._go_live(sealed, begun.plan, begun.events, begun.watch)

    def _go_live(self, sealed: Generation, plan: RebuildPlan, events: int, watch: Stopwatch) -> RebuildResult:
        swap = Swap(self.view, sealed, self._store, self._open_reader, self.options, watch)
        return swap.run(self._stable_ends(plan), events)

    def _ids(self) -> dict[str, str]:
        with closing(self._open_log()) as log:
            return known_ids(log, topics_of(self.view, log.partitions))

    def _open(self, plan: RebuildPlan, ids: Mapping[str, str], attempt: str) -> Generation:
        codes = (self.options.fold,) if self.options.fold else ()
        told: dict[str, Any] = {"ends": plan.ends, "name": self.options.pin, "folds": codes, "ids": ids}
        told["attempt"] = attempt
        return open_generation(self._store, self.view, plan.topics, Phase.BULK, plan.buckets, **told)

    def _check_tails(self) -> None:
        """Checks that what goes live would not stand still, for only tails of other code run.

        Raises:
            ConfigurationError: it would.
        """
        fold, view = self.options.fold, self.view
        if not fold or self.options.hold or self.options.pin or self.options.swap_anyway:
            return
        found = attendance(self._store, view.name, view.hash, [fold])
        if found.members and not found.of(fold):
            raise ConfigurationError(
                f"view {view.name}: its tails run other code than this ({shown(found.members)}) and would not fold "
                f"what this code builds; hold it back until one of it runs: leftfold rebuild {view.name} --hold, "
                f"then leftfold run {view.name} with this code, then leftfold promote {view.name}"
            )

    def _begun(self, generation: Generation, plan: RebuildPlan, watch: Stopwatch) -> Begun:
        if generation.phase is not Phase.BULK:
            return Begun(self, generation, plan, watch)
        whole = self._store.finished(generation)
        left = {bucket: plan.ends for bucket in range(generation.buckets) if bucket not in whole} if whole else None
        job = BulkJob(
            self.view, generation, plan.ranges, self._open_log, self._open_sink, self.options.max_parked, left
        )
        return Begun(self, generation, plan, watch, job, whole)

    def _stable_ends(self, plan: RebuildPlan) -> Position:
        with closing(self._open_log()) as log:
            return log.stable_ends(plan.topics)


@dataclass
class Begun:
    """A rebuild under way: what its job is (None = there is nothing to fold any more), and what was whole before."""

    rebuild: Rebuild
    generation: Generation
    plan: RebuildPlan
    watch: Stopwatch
    job: BulkJob | None = None
    whole: Mapping[int, BucketResult] = field(default_factory=dict)
    events: int = 0


def sealed_marks(generation: Generation, ends: Position, results: Sequence[BucketResult]) -> Mapping[int, Mark]:
    """The first marks of a generation built up to these ends; a bucket without a result is empty."""
    by_bucket = {result.bucket: result for result in results}
    return {
        bucket: by_bucket.get(bucket, BucketResult(bucket)).mark(
            ends.only(generation.topics, bucket if generation.stream_keyed else None), secrets.token_hex(8)
        )
        for bucket in range(generation.buckets)
    }
