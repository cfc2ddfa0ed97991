"""One run of a streaming fold: micro-batches that start at the checkpoints of buckets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord, ViewStore
from leftfold.spark.core.task_io import ITEM, Batches, cause_of, item_batches, items_in, line_batches

__all__ = ["BatchQuery", "QueryOptions"]


_HEADERS = ("ce_type", "ce_time", "ce_sequence", "ce_decision")
"""The headers that a fold reads; the others stay in the JVM."""


def run_batch(batch: DataFrame, job: MicroBatchTask) -> list[BatchResult]:
    """Runs the tasks of a micro-batch; returns their results for the buckets they changed."""
    read = batch.select("topic", "partition", "offset", "key", "value", _headers().alias("headers"))
    together = batch.sparkSession.sparkContext.defaultParallelism
    if sum(job.generation.topics.values()) > together:
        # Partitions stay whole, and a few tasks that read several of them in turn cost less than many tasks.
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


def _fold_partitions(job: MicroBatchTask) -> Callable[[Batches], Batches]:
    def fold(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_partitions(_records(batches), store))

    return fold


def _emit(job: MicroBatchTask) -> Callable[[Batches], Batches]:
    def emit(batches: Batches) -> Batches:
        tuned_gc()
        return item_batches(job.read_items(_records(batches)))

    return emit


def _fold_buckets(job: MicroBatchTask) -> Callable[[Batches], Batches]:
    def fold(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_buckets(items_in(batches), store))

    return fold


def _records(batches: Batches) -> Iterator[RawRecord]:
    """The rows of a source partition as records; headers are taken out of Arrow per batch, not per row."""
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
    """Zeros for the broker's times, which a fold does not read."""
    return [0] * batch.num_rows


def _lengths(column: Any) -> list[int]:
    return [length or 0 for length in pa.compute.list_value_length(column).to_pylist()]


@dataclass(frozen=True)
class QueryOptions:
    """Options of a streaming query.

    Args:
        kafka: the properties of a Java client.
        trigger: seconds from batch to batch; 0 = the next begins when one has ended.
        most: the maximal number of events in a batch, over all partitions.
        checkpoint: Spark's checkpoint directory; when not given, a temporary one that is removed at the end, and by
            Spark's JVM when this process is killed.
    """

    kafka: Mapping[str, str]
    trigger: float = 0.0
    most: int = 200_000
    checkpoint: Path | None = None


class BatchQuery:
    """One run: a streaming query that updates some generations of a view.

    Args:
        courses: one per generation. folded: called after every batch that was folded.
    """

    def __init__(
        self,
        spark: SparkSession,
        courses: Sequence[MicroBatchDriver],
        store: ViewStore,
        options: QueryOptions,
        folded: Callable[[MicroBatchDriver], None] = lambda course: None,
    ) -> None:
        self._courses, self._store, self._options, self._folded = tuple(courses), store, options, folded
        temporary: Any = spark.sparkContext._temp_dir  # noqa: SLF001  # in a directory for this user only, mode 0700
        self._folder = options.checkpoint or Path(tempfile.mkdtemp(prefix="leftfold-run-", dir=temporary))
        self._start = _least([course.position() for course in courses], courses[0].generation.topics)
        self._failure: BaseException | None = None
        try:
            self.query: StreamingQuery = self._begin(spark)
        except BaseException:
            self._remove()
            raise

    def wait(self, seconds: float) -> bool:
        """Waits for the end of the run, for at most so many seconds; returns whether it has ended.

        A run never ends by itself.

        Raises:
            OutOfStep: another writer wrote, or the store rolled back.
            LeftfoldError: why a batch failed.
        """
        try:
            if not self.query.awaitTermination(seconds):  # type: ignore[arg-type]  # it takes fractions of seconds
                return False
        except PySparkException as error:
            raise self._failure or cause_of(error) from error
        if self._failure is not None:
            raise self._failure
        return True

    def close(self) -> None:
        """Ends the run; a batch under way is dropped, which leaves whole buckets."""
        try:
            with suppress(PySparkException, Py4JError, ConnectionError):  # the last two when Spark has died
                self.query.stop()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._options.checkpoint is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, spark: SparkSession) -> StreamingQuery:
        reader = spark.readStream.format("kafka").option("subscribe", ",".join(self._start.offsets))
        reader = reader.option("startingOffsets", self._start.to_json())
        for name, value in {**_PROMPT, **self._options.kafka, **_COMMITTED}.items():
            reader = reader.option(f"kafka.{name}", value)
        for name, value in _WHOLE.items():
            reader = reader.option(name, value)
        writer = (
            reader.option("maxOffsetsPerTrigger", self._options.most)
            .load()
            .writeStream.foreachBatch(self._fold)
            .option("checkpointLocation", self._folder.as_uri())
            .trigger(processingTime=f"{int(self._options.trigger * 1000)} milliseconds")
        )
        return writer.start()

    def _fold(self, batch: DataFrame, number: int) -> None:
        """Folds one batch into every generation; an error ends the query and is raised by `wait`."""
        try:
            span = (self._offsets(number - 1), self._offsets(number))
            with _kept(batch, times=len(self._courses)):
                for course in self._courses:
                    course.fold(number, span, lambda job: run_batch(batch, job), self._store)
                    self._folded(course)
        except (PySparkException, Py4JError) as error:  # pyspark knows only some of Java's exceptions by name
            self._failure = cause_of(error)
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _offsets(self, number: int) -> Position:
        """The end position of a batch, which Spark writes to its checkpoint before the batch begins."""
        if number < 0:
            return self._start
        lines = (self._folder / "offsets" / str(number)).read_text("utf-8").splitlines()
        return Position.from_json(lines[2])


@contextmanager
def _kept(batch: DataFrame, *, times: int) -> Iterator[None]:
    """Persists a batch that is folded several times, so that it is read from Kafka once."""
    if times < 2:
        yield
        return
    batch.persist()
    try:
        yield
    finally:
        batch.unpersist()


# The last record of a batch may be followed by a transaction marker, for which a fetch would wait half a second.
_PROMPT = {"fetch.max.wait.ms": "10"}
# A batch that lacks records must fail, not be folded.
_WHOLE = {"includeHeaders": "true", "failOnDataLoss": "true"}
# A Java client reads aborted records by default.
_COMMITTED = {"isolation.level": "read_committed"}


def _least(positions: Sequence[Position], topics: Mapping[str, int]) -> Position:
    """The smallest next offset per partition among some positions, for every partition."""
    return Position(
        {t: {p: min(at.next_offset(t, p) for at in positions) for p in range(count)} for t, count in topics.items()}
    )
