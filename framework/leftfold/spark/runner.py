"""Runs a rebuild's tasks on Spark: keyed topics are partitioned and sorted already, so most views need no shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_pass import BulkPass
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan
from leftfold.engine.rebuild_together import PassRunner
from leftfold.errors import LeftfoldError
from leftfold.garbage import tuned_gc
from leftfold.spark.items import ITEM, Batches, item_batch, items_in, line_batches
from leftfold.spark.outcome import cause_of, lines_of, results_of, results_of_pass
from leftfold.spark.passes import pass_lines
from leftfold.spark.progress import Address, Teller, listening

__all__ = ["spark_pass_runner", "spark_runner", "tagged"]

_MANY = 5_000
_SORTED_TOGETHER = 1_000_000
"""About how many events one task sorts and folds, where there are enough buckets."""


def spark_runner(spark: SparkSession) -> Callable[[BulkJob, RebuildPlan, Tell], list[BucketResult]]:
    """A Runner on a session; the master decides where tasks run."""

    def run(job: BulkJob, plan: RebuildPlan, tell: Tell) -> list[BucketResult]:
        tasks = _streams if plan.stream_keyed else _sorted
        with listening(spark, tell) as address, tagged(spark.sparkContext):
            try:
                return results_of(tasks(spark, job, plan, address))
            except LeftfoldError:
                raise
            except Exception as error:
                raise cause_of(error) from error

    return run


def spark_pass_runner(spark: SparkSession) -> PassRunner:
    """A PassRunner on a session."""

    def run(jobs: Sequence[BulkJob], plan: RebuildPlan, tell: Tell) -> list[list[BucketResult]]:
        with listening(spark, tell) as address, tagged(spark.sparkContext):
            try:
                return results_of_pass(pass_lines(spark, BulkPass(tuple(jobs)), plan, address), len(jobs))
            except LeftfoldError:
                raise
            except Exception as error:
                raise cause_of(error) from error

    return run


@contextmanager
def tagged(context: SparkContext) -> Iterator[None]:
    """Cancels, at the end of the block, what it started and what still runs; a session may have other work."""
    tag = f"leftfold-{uuid4()}"
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.cancelJobsWithTag(tag)
        context.removeJobTag(tag)


def _streams(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> list[str]:
    """Each task folds whole partitions in their own order.

    This is an RDD because a session's first DataFrame costs Spark 2.5 s of planning and compiling, and all that
    travels is a number to each task and a line for each bucket.
    """
    tasks = plan.tasks

    def fold(numbers: Iterable[int]) -> Iterator[str]:
        tuned_gc()
        parts = [part for number in numbers for part in tasks[number]]
        with closing(Teller(address)) as tell:
            yield from lines_of(lambda: job.fold_streams(parts, tell))

    count = len(tasks)
    return spark.sparkContext.parallelize(range(count), count).mapPartitions(fold).collect() if tasks else []


def _sorted(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> list[str]:
    """Tasks emit what touches which row; whole buckets are then sorted and folded."""
    tasks, count = plan.tasks, min(plan.buckets, max(2 * plan.cores, plan.events // _SORTED_TOGETHER))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for number in _numbers(batches) for part in tasks[number]]
        with closing(Teller(address)) as tell:
            items = iter(job.read_items(parts, tell))
            while chunk := list(islice(items, _MANY)):
                yield item_batch(chunk)

    def fold(batches: Batches) -> Batches:
        tuned_gc()
        return line_batches(lines_of(lambda: job.fold_buckets(items_in(batches))))

    if not tasks:
        return []
    folded = (
        spark.range(0, len(tasks), 1, len(tasks))
        .mapInArrow(emit, ITEM)
        .repartitionById(count, "bucket")
        .sortWithinPartitions("bucket", "key", "source", "offset", "nth")
        .mapInArrow(fold, "line string")
    )
    return [row.line for row in folded.collect()]


def _numbers(batches: Batches) -> list[int]:
    return [int(number) for batch in batches for number in batch.column(0).to_pylist() if number is not None]
