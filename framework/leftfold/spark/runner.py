"""Runs a rebuild's tasks on Spark: keyed topics are partitioned and sorted already, so most views need no shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_items import Item
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.plan import RebuildPlan
from leftfold.errors import LeftfoldError
from leftfold.process import tuned_gc
from leftfold.spark.outcome import cause_of, lines_of, results_of
from leftfold.spark.progress import Address, Teller, listening

__all__ = ["spark_runner"]

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


def spark_runner(spark: SparkSession) -> Callable[[BulkJob, RebuildPlan, Tell], list[BucketResult]]:
    """A Runner on a session; the master decides where tasks run."""

    def run(job: BulkJob, plan: RebuildPlan, tell: Tell) -> list[BucketResult]:
        host = spark.conf.get("spark.driver.host") or "127.0.0.1"
        with listening(host, tell) as address:
            frame = _streams(spark, job, plan, address) if plan.stream_keyed else _sorted(spark, job, plan, address)
            try:
                return results_of(row.line for row in frame.collect())
            except (KeyboardInterrupt, LeftfoldError):
                raise
            except Exception as error:
                raise cause_of(error) from error
            finally:
                spark.sparkContext.cancelAllJobs()

    return run


def _streams(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> DataFrame:
    """Each task folds whole partitions in their own order."""
    tasks = plan.tasks

    def fold(batches: Batches) -> Batches:
        tuned_gc()
        parts = [part for number in _numbers(batches) for part in tasks[number]]
        with closing(Teller(address)) as tell:
            yield from _lines(lines_of(lambda: job.fold_streams(parts, tell)))

    return _numbered(spark, len(tasks)).mapInArrow(fold, "line string")


def _sorted(spark: SparkSession, job: BulkJob, plan: RebuildPlan, address: Address) -> DataFrame:
    """Tasks emit what touches which row; whole buckets are then sorted and folded."""
    tasks = plan.tasks

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

    emitted = _numbered(spark, len(tasks)).mapInArrow(emit, _ITEM)
    return (
        emitted.repartition(min(plan.buckets, 2 * plan.cores), "bucket")
        .sortWithinPartitions("bucket", "key", "source", "offset", "nth")
        .mapInArrow(fold, "line string")
    )


def _numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, count)


def _numbers(batches: Batches) -> list[int]:
    return [int(number) for batch in batches for number in batch.column(0).to_pylist() if number is not None]


def _lines(lines: Iterable[str]) -> Batches:
    for line in lines:
        yield pa.RecordBatch.from_arrays([pa.array([line], pa.string())], schema=_LINE_ARROW)
