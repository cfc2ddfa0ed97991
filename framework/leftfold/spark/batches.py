"""Runs a micro-batch on Spark: one stage where source partitions are buckets, else one more, behind a sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from leftfold.engine.batch_job import BatchJob
from leftfold.engine.batch_result import BatchResult
from leftfold.garbage import tuned_gc
from leftfold.ports import RawRecord
from leftfold.spark.items import ITEM, Batches, item_batch, items_in, line_batches

__all__ = ["run_batch"]

_MANY = 5_000
_HEADERS = ("ce_type", "ce_time", "ce_sequence", "ce_decision")
"""What a fold looks at; the other headers stay in the JVM."""


def run_batch(batch: DataFrame, job: BatchJob) -> list[BatchResult]:
    """What the tasks of a batch say of the buckets that they touched."""
    read = batch.select("topic", "partition", "offset", "key", "value", _headers().alias("headers"))
    together = batch.sparkSession.sparkContext.defaultParallelism
    if sum(job.generation.topics.values()) > together:
        # Partitions stay whole, and few tasks that take several of them one after another cost less than many.
        read = read.coalesce(together)
    if job.generation.stream_keyed:
        folded = read.mapInArrow(_fold_partitions(job), "line string")
    else:
        count = min(job.generation.buckets, together)
        folded = (
            read.mapInArrow(_emit(job), ITEM)
            .repartitionById(count, "bucket")
            .sortWithinPartitions("bucket", "key", "source", "offset", "nth")
            .mapInArrow(_fold_buckets(job), "line string")
        )
    return [BatchResult.from_json(row.line) for row in folded.collect()]


def _headers() -> Column:
    return f.filter("headers", lambda header: header["key"].isin(*_HEADERS))


def _fold_partitions(job: BatchJob) -> Callable[[Batches], Batches]:
    def fold(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_partitions(_records(batches), store))

    return fold


def _emit(job: BatchJob) -> Callable[[Batches], Batches]:
    def emit(batches: Batches) -> Batches:
        tuned_gc()
        items = job.read_items(_records(batches))
        while chunk := list(islice(items, _MANY)):
            yield item_batch(chunk)

    return emit


def _fold_buckets(job: BatchJob) -> Callable[[Batches], Batches]:
    def fold(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_buckets(items_in(batches), store))

    return fold


def _records(batches: Batches) -> Iterator[RawRecord]:
    """The rows of a source partition as records; the headers of a batch are taken out of Arrow at once, not by row."""
    for batch in batches:
        columns = [batch.column(n).to_pylist() for n in range(5)]
        yield from map(RawRecord._make, zip(*columns, _headers_in(batch.column(5)), _no_times(batch), strict=True))


def _headers_in(column: Any) -> Iterator[list[tuple[str, bytes]]]:
    pairs = column.flatten()
    names, values = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    at = 0
    for count in _lengths(column):
        yield list(zip(names[at : at + count], values[at : at + count], strict=True))
        at += count


def _no_times(batch: pa.RecordBatch) -> list[int]:
    """A fold does not look at the broker's time."""
    return [0] * batch.num_rows


def _lengths(column: Any) -> list[int]:
    return [length or 0 for length in pa.compute.list_value_length(column).to_pylist()]
