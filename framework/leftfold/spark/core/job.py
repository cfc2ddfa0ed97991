"""Spark jobs of a rebuild: one pass over the log for several views, without a shuffle where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, groupby
from operator import itemgetter
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import PassRunner
from leftfold.engine.rebuild.sorted_fold import KeyedUpdate
from leftfold.engine.rebuild.tasks import BulkJob, BulkPass, PassResult, ProgressCallback, tuned_gc
from leftfold.errors import InfrastructureError
from leftfold.ports.bulk import BucketResult
from leftfold.spark.core.task_io import (
    ITEM,
    ITEM_FIELDS,
    ITEM_ORDER,
    Address,
    Batches,
    ProgressReporter,
    arrow_batches,
    job_errors,
    line_batches,
    lines_of,
    listening,
    results_of,
    results_of_pass,
    rows_in,
)

__all__ = ["spark_pass_runner", "spark_runner", "tagged"]


_LINE = -1
_SCHEMA = pa.schema([("slot", pa.int32()), ("job", pa.int32()), *ITEM_FIELDS])
_COLUMNS = f"slot int, job int, {ITEM}"
_BODY = _SCHEMA.get_field_index("body")
_SORTED_TOGETHER = 1_000_000
"""About how many events one task sorts and folds, where there are enough buckets."""


def pass_lines(spark: SparkSession, whole: BulkPass, plan: RebuildPlan, address: Address) -> list[str]:
    """Runs a pass and returns its result lines: a job's number, a space, and a line as from `lines_of`."""
    tasks, buckets = plan.tasks, sum(job.generation.buckets for job in whole.jobs)
    count = min(buckets, max(2 * plan.cores, plan.events // _SORTED_TOGETHER))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for (number,) in rows_in(batches) for part in tasks[number]]
        with closing(ProgressReporter(address)) as tell:
            found = whole.read(parts, tell)
            rows = chain.from_iterable(_rows(passed, count) for passed in found)
            yield from arrow_batches(rows, _SCHEMA, lambda row: len(row[_BODY]))

    def fold(batches: Batches) -> Batches:
        tuned_gc()
        return line_batches(_folded(whole, rows_in(batches)))

    if not tasks:
        return []
    folded = (
        spark.range(0, len(tasks), 1, len(tasks))
        .mapInArrow(emit, _COLUMNS)
        .repartitionById(count, "slot")
        .sortWithinPartitions("job", *ITEM_ORDER)
        .mapInArrow(fold, "line string")
    )
    return [row.line for row in folded.collect()]


def _rows(passed: PassResult, slots: int) -> Sequence[tuple[Any, ...]]:
    """Items to shuffle to the tasks that fold their buckets, or a result line that is only passed through."""
    job = passed.job
    if passed.result is not None:
        return ((0, job, _LINE, passed.result.to_json(), 0, 0, 0, b"", ""),)
    return [((item.bucket + job) % slots, job, *item) for item in passed.items]


def _folded(whole: BulkPass, rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    for job, mine in groupby(rows, itemgetter(1)):
        items = iter(mine)
        first = next(items)
        while first is not None and first[2] == _LINE:
            yield f"{job} {first[3]}"
            first = next(items, None)  # type: ignore[arg-type]  # the end
        if first is not None:
            found = (KeyedUpdate._make(row[2:]) for row in chain((first,), items))
            yield from (f"{job} {line}" for line in lines_of(lambda found=found, job=job: whole.fold(job, found)))  # type: ignore[misc]


def spark_runner(spark: SparkSession) -> Callable[[BulkJob, RebuildPlan, ProgressCallback], list[BucketResult]]:
    """A Runner that runs the tasks of a rebuild on a Spark session."""
    passed = spark_pass_runner(spark)

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        if not plan.stream_keyed:
            return passed([job], plan, tell)[0]
        with listening(spark, tell) as address, tagged(spark.sparkContext), job_errors():
            return results_of(_streams(spark, job, plan, address))

    return run


def spark_pass_runner(spark: SparkSession) -> PassRunner:
    """A PassRunner that runs a pass over the log on a Spark session."""

    def run(jobs: Sequence[BulkJob], plan: RebuildPlan, tell: ProgressCallback) -> list[list[BucketResult]]:
        with listening(spark, tell) as address, tagged(spark.sparkContext), job_errors():
            return results_of_pass(pass_lines(spark, BulkPass(tuple(jobs)), plan, address), len(jobs))

    return run


_CANCEL_SECONDS = 1.0


@contextmanager
def limited(context: SparkContext, seconds: float) -> Iterator[None]:
    """Cancels the Spark jobs of the block when they take longer.

    Raises:
        InfrastructureError: they did.
    """
    has_ended, is_late = Event(), Event()

    def cancel() -> None:
        while not has_ended.wait(_CANCEL_SECONDS if is_late.is_set() else seconds):
            is_late.set()  # again and again: a job may begin only now
            with suppress(Py4JError, OSError):
                context.cancelJobsWithTag(tag)

    with tagged(context) as tag:
        Thread(target=cancel, daemon=True).start()
        try:
            yield
        except Exception as error:
            if is_late.is_set():
                raise InfrastructureError(f"it took more than {seconds:,.0f} s and was cancelled") from error
            raise
        finally:
            has_ended.set()


@contextmanager
def tagged(context: SparkContext) -> Iterator[str]:
    """Cancels, at the end of the block, the Spark jobs it started; other jobs of the session keep running."""
    tag = f"leftfold-{uuid4()}"
    context.addJobTag(tag)
    try:
        yield tag
    except BaseException:
        with suppress(Py4JError, OSError):  # the JVM may hang up after Ctrl-C, which must stay one
            context.cancelJobsWithTag(tag)
            context.removeJobTag(tag)
        raise
    context.cancelJobsWithTag(tag)
    context.removeJobTag(tag)


def _streams(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> list[str]:
    """Folds streams: each task folds whole partitions in their own order.

    This is an RDD because a session's first DataFrame costs Spark 2.5 s of planning and compiling, and only a number
    goes to each task and a line comes back for each bucket.
    """
    tasks = plan.tasks

    def fold(numbers: Iterable[int]) -> Iterator[str]:
        tuned_gc()
        parts = [part for number in numbers for part in tasks[number]]
        with closing(ProgressReporter(address)) as tell:
            yield from lines_of(lambda: job.fold_streams(parts, tell))

    count = len(tasks)
    return spark.sparkContext.parallelize(range(count), count).mapPartitions(fold).collect() if tasks else []
