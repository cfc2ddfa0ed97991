"""One pass of Spark over the log for several views: what each task reads once goes to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from leftfold.engine.bulk_items import Item
from leftfold.engine.bulk_pass import BulkPass, Passed
from leftfold.engine.plan import RebuildPlan
from leftfold.garbage import tuned_gc
from leftfold.spark.items import Batches, line_batches
from leftfold.spark.outcome import lines_of
from leftfold.spark.progress import Address, Teller

__all__ = ["pass_lines"]

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


def pass_lines(spark: SparkSession, whole: BulkPass, plan: RebuildPlan, address: Address) -> list[str]:
    """Runs a pass; each line is a job's number, a space, and what `lines_of` says of it."""
    tasks, buckets = plan.tasks, sum(job.generation.buckets for job in whole.jobs)
    count = min(buckets, max(2 * plan.cores, plan.events // _SORTED_TOGETHER))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        numbers = [int(n) for batch in batches for n in batch.column(0).to_pylist() if n is not None]
        parts = [part for number in numbers for part in tasks[number]]
        with closing(Teller(address)) as tell:
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


def _rows(passed: Passed, slots: int) -> Sequence[tuple[Any, ...]]:
    """Items on their way to the tasks that fold their buckets, or a line that is only carried along."""
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
            found = (Item._make(row[2:]) for row in _chained(first, items))
            yield from (f"{job} {line}" for line in lines_of(lambda found=found, job=job: whole.fold(job, found)))  # type: ignore[misc]


def _chained(first: tuple[Any, ...], rest: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    yield first
    yield from rest
