"""A rebuild: a new generation of a view from the whole log, beside the one that readers see, then the swap."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_local import run_here
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkStore, OpenBulkSink
from leftfold.engine.follower import MAX_PARKED
from leftfold.engine.generations import BUCKETS, change, open_generation
from leftfold.engine.plan import RebuildPlan, plan_rebuild
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.rebuild_removal import abandon, sweep
from leftfold.engine.rebuild_result import RebuildResult
from leftfold.engine.rebuild_swap import Swap
from leftfold.flush import Generation, Mark, Phase
from leftfold.ports import LogReader
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Rebuild", "RebuildOptions", "Runner"]

Runner = Callable[[BulkJob, RebuildPlan, Tell], list[BucketResult]]
"""Runs a job's tasks somewhere and returns one result per bucket that has any items."""


@dataclass(frozen=True)
class RebuildOptions:
    """What an operator may choose.

    Args:
        cores: tasks at once. buckets: of the new generation, unless it is stream-keyed.
        keep: seconds for which the predecessor stays, followed by tails, for a rollback; 0 removes it at the swap.
        swap_anyway: goes live even if the predecessor's rows differ.
        patience: seconds for a tail to take the new generation over. timeout: seconds for catching up.
    """

    cores: int = 2
    buckets: int = BUCKETS
    keep: float = 600.0
    swap_anyway: bool = False
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

    def plan(self) -> RebuildPlan:
        """What would be read now, and what that would cost."""
        log = self._open_log()
        try:
            return plan_rebuild(self.view, log, cores=self.options.cores, buckets=self.options.buckets)
        finally:
            log.close()

    def run(self, plan: RebuildPlan | None = None) -> RebuildResult:
        """Builds, catches up and swaps; whatever goes wrong before the swap leaves no trace but the error.

        Raises:
            ContractError: an event cannot be read or folded and cannot be parked either.
            Fenced: somebody removed the new generation, or another one went live meanwhile.
            InfrastructureError: the log, the store or Spark is not there, or catching up took too long.
        """
        watch = Stopwatch(self._report)
        watch.begin("plan")
        sweep(self._store, self.view, self.options.keep)
        plan = plan or self.plan()
        generation = open_generation(self._store, self.view, plan.topics, Phase.BULK, plan.buckets)
        try:
            return self._build(generation, plan, watch)
        except BaseException as error:
            abandon(self._store, generation, error)
            raise

    def _build(self, generation: Generation, plan: RebuildPlan, watch: Stopwatch) -> RebuildResult:
        watch.begin("fold", plan.events)
        job = BulkJob(self.view, generation, plan.ranges, self._open_log, self._open_sink, self.options.max_parked)
        results = self._run(job, plan, watch.tell)
        events = watch.done
        job.check_parked([parked for result in results for parked in result.parked.values()])
        watch.begin("seal")
        self._store.seal(generation, sealed_marks(generation, plan.ends, results))
        sealed = generation.in_phase(Phase.SEALED)
        change(self._store, self.view.name, lambda r: r.with_generation(sealed))
        return self._go_live(sealed, plan, events, watch)

    def _go_live(self, sealed: Generation, plan: RebuildPlan, events: int, watch: Stopwatch) -> RebuildResult:
        swap = Swap(self.view, sealed, self._store, self._open_reader, self.options, watch)
        return swap.run(self._stable_ends(plan), events)

    def _stable_ends(self, plan: RebuildPlan) -> Position:
        log = self._open_log()
        try:
            return log.stable_ends(plan.topics)
        finally:
            log.close()


def sealed_marks(generation: Generation, ends: Position, results: Sequence[BucketResult]) -> Mapping[int, Mark]:
    """The first marks of a generation built up to these ends; a bucket without a result is empty."""
    by_bucket = {result.bucket: result for result in results}
    return {
        bucket: by_bucket.get(bucket, BucketResult(bucket)).mark(
            ends.only(generation.topics, bucket if generation.stream_keyed else None), secrets.token_hex(8)
        )
        for bucket in range(generation.buckets)
    }
