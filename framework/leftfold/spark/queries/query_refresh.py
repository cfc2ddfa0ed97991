"""Refresh of a computed view on Spark: all its rows are keyed, sorted by bucket and written again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.refresh import ComputedRow, computed_all, write_computed
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, tuned_gc
from leftfold.errors import ConfigurationError
from leftfold.model.computed_views import TableView
from leftfold.model.keys import events
from leftfold.ports.bulk import BucketResult
from leftfold.spark.core.job import tagged
from leftfold.spark.core.task_io import (
    Address,
    Batches,
    SkippedValues,
    arrow_batches,
    job_errors,
    line_batches,
    lines_of,
    listening,
    results_of,
    rows_in,
)
from leftfold.spark.queries.compute import RowReader, compute, own_session
from leftfold.spark.tables.columns import EventTable
from leftfold.spark.tables.log_frames import LogSlice, log_frame

__all__ = ["query_runner", "write_frame"]

_LOGGER = logging.getLogger(__name__)
_ROW = "bucket int, key string, fields array<binary>, entries array<string>"
_ROW_FIELDS: list[Any] = [
    ("bucket", pa.int32()),
    ("key", pa.string()),
    ("fields", pa.list_(pa.binary())),
    ("entries", pa.list_(pa.string())),
]
_ROW_ARROW = pa.schema(_ROW_FIELDS)
_EVENTS_PER_PART = 500_000


def query_runner(
    spark: SparkSession, warn: Callable[[str], None] = _LOGGER.warning
) -> Callable[[BulkJob, RebuildPlan, ProgressCallback], list[BucketResult]]:
    """A Runner for query views and frame views on a session.

    Args:
        warn: called with what was skipped: events with a value that does not fit its column, rows without a key.
    """

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        view = job.view
        if not isinstance(view, TableView):
            raise ConfigurationError(f"view {view.name} is folded, not computed; rebuild it with the fold's runner")
        session = own_session(spark, shuffles=max(2 * plan.cores, plan.events // _EVENTS_PER_PART))
        misfits = SkippedValues(spark)
        with listening(spark, tell) as address, tagged(spark.sparkContext):
            frame = compute(session, view, _opener(plan, job, address, misfits))
            results = write_frame(frame, job, 2 * plan.cores, misfits)
        if misfits.found:
            warn(f"view {view.name}: {misfits}")
        return results

    return run


def _opener(
    plan: RebuildPlan, job: BulkJob, address: Address, misfits: SkippedValues
) -> Callable[[SparkSession, EventTable], DataFrame]:
    log, counted = LogSlice(plan.tasks, job.open_log), set[str]()

    def open_table(session: SparkSession, table: EventTable) -> DataFrame:
        # A topic that two tables read is read twice, but its events count once in the progress.
        topic = events(table.event.__leftfold__.category)
        teller = address if topic not in counted else None
        counted.add(topic)
        return log_frame(session, log.of(topic), table.schema, table.row, teller, misfits)

    return open_table


def write_frame(frame: DataFrame, job: BulkJob, parts: int, misfits: SkippedValues) -> list[BucketResult]:
    """Writes all rows of a result into the generation of a job; one result per bucket that has any.

    Args:
        misfits: collects rows without a key, which are left out.

    Raises:
        LeftfoldError: an error of a task: two rows of one key, a NULL where none may be, an event that cannot be read.
    """
    view: Any = job.view
    reader, buckets = RowReader(view), job.generation.buckets

    def encode(batches: Batches) -> Batches:
        tuned_gc()
        for batch in batches:
            rows = computed_all(view, reader.rows(batch), buckets, misfits.unnamed)
            yield from arrow_batches(rows, _ROW_ARROW, lambda row: sum(map(len, row.fields)))

    def write(batches: Batches) -> Batches:
        tuned_gc()
        rows = (
            ComputedRow(bucket, key, tuple(fields), tuple(entries)) for bucket, key, fields, entries in rows_in(batches)
        )
        return line_batches(lines_of(lambda: write_computed(job, rows)))

    written = (
        frame.mapInArrow(encode, _ROW)
        .repartitionById(min(buckets, parts), "bucket")
        .sortWithinPartitions("bucket", "key")
        .mapInArrow(write, "line string")
    )
    with job_errors():
        return results_of(row.line for row in written.collect())
