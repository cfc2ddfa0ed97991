"""Several rebuilds in one pass over the log that they all read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_pass import run_pass_here
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan
from leftfold.engine.rebuild import Begun, Rebuild
from leftfold.engine.rebuild_result import RebuildResult

__all__ = ["PassRunner", "rebuild_together", "run_here_together"]

PassRunner = Callable[[Sequence[BulkJob], RebuildPlan, Tell], list[list[BucketResult]]]
"""Runs several jobs over the same ranges somewhere; returns each job's results, one per bucket that has any items."""


def run_here_together(jobs: Sequence[BulkJob], plan: RebuildPlan, tell: Tell) -> list[list[BucketResult]]:
    """A PassRunner in this process."""
    return run_pass_here(jobs, [part for task in plan.tasks for part in task], tell)


def rebuild_together(
    rebuilds: Sequence[Rebuild], plan: RebuildPlan, run: PassRunner = run_here_together
) -> list[RebuildResult]:
    """Rebuilds several views that read the same topics, reading each partition once.

    One that goes on where it was interrupted before is rebuilt by itself at the end: what is left of it is another
    part of the log.

    Raises:
        LeftfoldError: what `Rebuild.run` raises. What was swapped in before stays so.
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


def _fold(begun: Sequence[Begun], plan: RebuildPlan, run: PassRunner) -> None:
    """Folds all of them at once; the first one's progress is that of all."""
    watch = begun[0].watch
    for one in begun:
        one.watch.end()
    watch.begin("fold", plan.events)
    jobs = [one.job for one in begun if one.job is not None]
    results = run(jobs, plan, watch.tell)
    events, seconds = watch.done, watch.end_phase()
    for one, found in zip(begun, results, strict=True):
        one.events = events
        one.watch.seconds["fold"] = seconds
        one.rebuild.seal(one, found)
