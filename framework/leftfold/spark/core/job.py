"""Spark jobs of a rebuild: one pass over the log for several views, without a shuffle where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import PassRunner
from leftfold.engine.rebuild.sorted_fold import KeyedUpdate
from leftfold.engine.rebuild.tasks import BulkJob, BulkPass, PassResult, ProgressCallback, tuned_gc
from leftfold.errors import LeftfoldError
from leftfold.ports.bulk import BucketResult
from leftfold.spark.core.task_io import (
    ITEM,
    Address,
    Batches,
    ProgressReporter,
    cause_of,
    item_batch,
    items_in,
    line_batches,
    lines_of,
    listening,
    results_of,
    results_of_pass,
)

__all__ = ["spark_pass_runner", "spark_runner", "tagged"]


_LINE = -1
_FIELDS: list[Any] = [
    ("slot", pa.int32()),
    ("job", pa.int32()),
    ("bucket", pa.int32()),
    ("key", pa.string()),
    ("source", pa.int32()),
    ("offset", pa.int64()),
    ("nth", pa.int32()),
    ("body", pa.binary()),
    ("time", pa.string()),
]
_SCHEMA = pa.schema(_FIELDS)
_COLUMNS = "slot int, job int, bucket int, key string, source int, offset long, nth int, body binary, time string"
_MANY = 5_000
_SORTED_TOGETHER = 1_000_000
"""About how many events one task sorts and folds, where there are enough buckets."""


def pass_lines(spark: SparkSession, whole: BulkPass, plan: RebuildPlan, address: Address) -> list[str]:
    """Runs a pass and returns its result lines: a job's number, a space, and a line as from `lines_of`."""
    tasks, buckets = plan.tasks, sum(job.generation.buckets for job in whole.jobs)
    count = min(buckets, max(2 * plan.cores, plan.events // _SORTED_TOGETHER))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        numbers = [int(n) for batch in batches for n in batch.column(0).to_pylist() if n is not None]
        parts = [part for number in numbers for part in tasks[number]]
        with closing(ProgressReporter(address)) as tell:
            rows = chain.from_iterable(_rows(passed, count) for passed in whole.read(parts, tell))
            while chunk := list(islice(rows, _MANY)):
                columns = zip(zip(*chunk, strict=True), _SCHEMA, strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(c, field.type) for c, field in columns], schema=_SCHEMA)

    def fold(batches: Batches) -> Batches:
        tuned_gc()
        rows = (row for b in batches for row in zip(*(c.to_pylist() for c in b.columns), strict=True))
        return line_batches(_folded(whole, rows))

    if not tasks:
        return []
    folded = (
        spark.range(0, len(tasks), 1, len(tasks))
        .mapInArrow(emit, _COLUMNS)
        .repartitionById(count, "slot")
        .sortWithinPartitions("job", "bucket", "key", "source", "offset", "nth")
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
            found = (KeyedUpdate._make(row[2:]) for row in _chained(first, items))
            yield from (f"{job} {line}" for line in lines_of(lambda found=found, job=job: whole.fold(job, found)))  # type: ignore[misc]


def _chained(first: tuple[Any, ...], rest: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    yield first
    yield from rest


def spark_runner(spark: SparkSession) -> Callable[[BulkJob, RebuildPlan, ProgressCallback], list[BucketResult]]:
    """A Runner that runs the tasks of a rebuild on a Spark session."""

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
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
    """A PassRunner that runs a pass over the log on a Spark session."""

    def run(jobs: Sequence[BulkJob], plan: RebuildPlan, tell: ProgressCallback) -> list[list[BucketResult]]:
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
    """Cancels, at the end of the block, the Spark jobs it started; other jobs of the session keep running."""
    tag = f"leftfold-{uuid4()}"
    context.addJobTag(tag)
    try:
        yield
    finally:
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


def _sorted(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> list[str]:
    """Folds rows: tasks emit an item for each event and row it changes; whole buckets are then sorted and folded."""
    tasks, count = plan.tasks, min(plan.buckets, max(2 * plan.cores, plan.events // _SORTED_TOGETHER))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for number in _numbers(batches) for part in tasks[number]]
        with closing(ProgressReporter(address)) as tell:
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
