"""Runs a rebuild's tasks on Spark: keyed topics are partitioned and sorted already, so most views need no shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_items import Item
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan
from leftfold.errors import LeftfoldError
from leftfold.process import tuned_gc
from leftfold.spark.outcome import cause_of, lines_of, results_of
from leftfold.spark.progress import Address, Teller, listening

__all__ = ["spark_runner", "tagged"]

Batches = Iterator[pa.RecordBatch]
_ITEM = "bucket int, key string, source int, offset long, nth int, body binary, time string"
_ITEM_FIELDS: list[Any] = [
    ("bucket", pa.int32()),
    ("key", pa.string()),
    ("source", pa.int32()),
    ("offset", pa.int64()),
    ("nth", pa.int32()),
    ("body", pa.binary()),
    ("time", pa.string()),
]
_ITEM_ARROW = pa.schema(_ITEM_FIELDS)
_LINE_ARROW = pa.schema([("line", pa.string())])
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
            except (KeyboardInterrupt, LeftfoldError):
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
                columns = zip(zip(*chunk, strict=True), _ITEM_ARROW, strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(c, field.type) for c, field in columns], schema=_ITEM_ARROW)

    def fold(batches: Batches) -> Batches:
        tuned_gc()
        items = (
            Item._make(row)
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        return _lines(lines_of(lambda: job.fold_buckets(items)))

    if not tasks:
        return []
    folded = (
        spark.range(0, len(tasks), 1, len(tasks))
        .mapInArrow(emit, _ITEM)
        .repartitionById(count, "bucket")
        .sortWithinPartitions("bucket", "key", "source", "offset", "nth")
        .mapInArrow(fold, "line string")
    )
    return [row.line for row in folded.collect()]


def _numbers(batches: Batches) -> list[int]:
    return [int(number) for batch in batches for number in batch.column(0).to_pylist() if number is not None]


def _lines(lines: Iterable[str]) -> Batches:
    for line in lines:
        yield pa.RecordBatch.from_arrays([pa.array([line], pa.string())], schema=_LINE_ARROW)
