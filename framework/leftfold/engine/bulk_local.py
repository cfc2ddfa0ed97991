"""A rebuild within this process: for tests, for small logs, and where no Spark is installed."""

from __future__ import annotations

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan

__all__ = ["run_here"]


def run_here(job: BulkJob, plan: RebuildPlan, tell: Tell) -> list[BucketResult]:
    """Runs all tasks one after another; a view that is not stream-keyed is sorted in memory."""
    parts = [part for task in plan.tasks for part in task]
    if job.generation.stream_keyed:
        return list(job.fold_streams(parts, tell))
    return list(job.fold_buckets(sorted(job.read_items(parts, tell))))
