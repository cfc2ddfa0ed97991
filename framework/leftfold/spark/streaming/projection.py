"""Keeps views at the end of the log by Spark structured streaming, seconds behind it, on any number of machines."""

from __future__ import annotations

import random
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from leftfold.engine.log_gaps import beginning
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.streaming.microbatch import MicroBatchDriver, OutOfStep
from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.engine.views.generation_lifecycle import GenerationLifecycle
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError, LogGap
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import LogReader, RawRecord, Report, ViewStore
from leftfold.spark.core.offsets import OffsetCheck, kafka_source
from leftfold.spark.core.task_io import ITEM, ITEM_ORDER, Batches, cause_of, item_batches, items_in, line_batches

__all__ = ["TUNED", "StreamPorts", "ViewStream", "tune"]

_REMEDY = (
    "compute it from archive and topic, after which the stream continues by itself: "
    "leftfold rebuild {view} --archive {archive}"
)
_GAP_SECONDS = 5.0
"""Seconds between checks whether a view that a stream could not continue was rebuilt."""

TUNED: Mapping[str, str] = {
    # A plain rename costs a third of what Hadoop's FileContext does, which is Spark's own choice.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.stopTimeout": "10s",
    "spark.sql.adaptive.enabled": "false",
}
"""Properties of a session for streaming folds; it needs no state store, since rows live in the view store."""


def tune(spark: SparkSession) -> None:
    """Sets the properties of a session for streaming folds."""
    for name, value in TUNED.items():
        spark.conf.set(name, value)


_HEADERS = ("ce_type", "ce_time", "ce_sequence", "ce_decision")
"""The headers that a fold reads; the others stay in the JVM."""
# The last record of a batch may be followed by a transaction marker, for which a fetch would wait half a second.
_PROMPT = {"fetch.max.wait.ms": "10"}
MOST_EVENTS = 200_000


def run_batch(batch: DataFrame, job: MicroBatchTask) -> list[BatchResult]:
    """Runs the tasks of a micro-batch; returns their results for the buckets they changed."""

    def fold_partitions(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_partitions(_records(batches), store))

    def emit(batches: Batches) -> Batches:
        tuned_gc()
        return item_batches(job.read_items(_records(batches)))

    def fold_buckets(batches: Batches) -> Batches:
        tuned_gc()
        with closing(job.open_store()) as store:
            yield from line_batches(result.to_json() for result in job.fold_buckets(items_in(batches), store))

    headers = f.filter("headers", lambda header: header["key"].isin(*_HEADERS)).alias("headers")
    read = batch.select("topic", "partition", "offset", "key", "value", headers)
    together = batch.sparkSession.sparkContext.defaultParallelism
    if sum(job.generation.topics.values()) > together:
        # Partitions stay whole, and a few tasks that read several of them in turn cost less than many tasks.
        read = read.coalesce(together)
    if job.generation.stream_keyed:
        folded = read.mapInArrow(fold_partitions, "line string")
    else:
        folded = (
            read.mapInArrow(emit, ITEM)
            .repartitionById(min(job.generation.buckets, together), "bucket")
            .sortWithinPartitions(*ITEM_ORDER)
            .mapInArrow(fold_buckets, "line string")
        )
    return [BatchResult.from_json(row.line) for row in folded.collect()]


def _records(batches: Batches) -> Iterator[RawRecord]:
    """The rows of a source partition as records, without the broker's times, which a fold does not read.

    Headers are taken out of Arrow per batch, not per row.
    """
    for batch in batches:
        columns = [batch.column(n).to_pylist() for n in range(5)]
        times = [0] * batch.num_rows
        yield from map(RawRecord._make, zip(*columns, _headers_in(batch.column(5)), times, strict=True))


def _headers_in(column: Any) -> Iterator[list[tuple[str, bytes]]]:
    pairs = column.flatten()
    names, values = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
    at = 0
    for length in pa.compute.list_value_length(column).to_pylist():
        end = at + (length or 0)
        yield list(zip(names[at:end], values[at:end], strict=True))
        at = end


class BatchQuery:
    """One run: a streaming query that updates some generations of a view.

    Its checkpoint directory is temporary: it is removed at the end, and by Spark's JVM when this process is killed.

    Args:
        drivers: one per generation. kafka: the properties of a Java client.
        folded: called after every batch that was folded.
        trigger: seconds from batch to batch; 0 = the next begins when one has ended.
        most: the maximal number of events in a batch, over all partitions.
    """

    def __init__(
        self,
        spark: SparkSession,
        drivers: Sequence[MicroBatchDriver],
        store: ViewStore,
        kafka: Mapping[str, str],
        folded: Callable[[MicroBatchDriver], None],
        *,
        trigger: float = 0.0,
        most: int = MOST_EVENTS,
    ) -> None:
        self._drivers, self._store, self._folded = tuple(drivers), store, folded
        temporary: Any = spark.sparkContext._temp_dir  # noqa: SLF001  # in a directory for this user only, mode 0700
        self._folder = Path(tempfile.mkdtemp(prefix="leftfold-run-", dir=temporary))
        self._start: Position = reduce(and_, [driver.position() for driver in drivers])
        self._failure: BaseException | None = None
        try:
            starts, topics = self._start.to_json(), self._start.offsets
            source = kafka_source(
                spark.readStream, topics, {**_PROMPT, **kafka}, startingOffsets=starts, maxOffsetsPerTrigger=most
            )
            self.query: StreamingQuery = (
                source.writeStream.foreachBatch(self._fold)
                .option("checkpointLocation", f"file://{self._folder}")  # Hadoop decodes no %20, as of `as_uri`
                .trigger(processingTime=f"{int(trigger * 1000)} milliseconds")
                .start()
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
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
            shutil.rmtree(self._folder, ignore_errors=True)

    def _fold(self, batch: DataFrame, number: int) -> None:
        """Folds one batch into every generation; an error ends the query and is raised by `wait`."""
        try:
            span = (self._offsets(number - 1), self._offsets(number))
            with _kept(batch, times=len(self._drivers)):
                for driver in self._drivers:
                    driver.fold(number, span, lambda job: run_batch(batch, job), self._store)
                    self._folded(driver)
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


@dataclass(frozen=True)
class StreamPorts:
    """The ports of streaming folds; `open_store` and `open_log` are sent to tasks, so they must be picklable.

    Args:
        kafka: the properties of a Java client, for Spark's own reader.
        archive: the log's archive, as messages name it in a command to type.
    """

    open_store: Callable[[], ViewStore]
    open_log: OpenBulkLog
    open_reader: Callable[[], LogReader]
    kafka: Mapping[str, str]
    archive: str = "DIR"


class ViewStream:
    """Updates the generations of one view by a streaming query; its owner calls `step` in a loop.

    Args:
        trigger: seconds from batch to batch; 0 = as they come. most: the maximal number of events in a batch.
        look: seconds between reads of the registry. job: how the tasks of a batch work.
        max_parked: how many keys may be parked before the view stops. fold: the hash of the code that folds.
        started: the views that this process has read before, shared by the streams that it makes.
        report: called with what an operator should know: (what, details).
    """

    def __init__(
        self,
        spark: SparkSession,
        view: View[Any, Any],
        *,
        ports: StreamPorts,
        trigger: float = 0.0,
        most: int = MOST_EVENTS,
        look: float = 0.25,
        job: type[MicroBatchTask] = MicroBatchTask,
        max_parked: int = MAX_PARKED,
        fold: str = "",
        started: set[str] | None = None,
        report: Report = lambda what, details: None,
    ) -> None:
        self.view, self.stopped = view, ""
        self._spark, self._ports, self._look, self._report = spark, ports, look, report
        self._job, self._max_parked = job, max_parked
        self._trigger, self._most = trigger, most
        self._store, self._log = ports.open_store(), ports.open_reader()
        remedy = _REMEDY.format(view=view.name, archive=shlex.quote(ports.archive))
        self._offset_check = OffsetCheck(spark, ports.kafka, view.name, remedy)
        self._lifecycle = GenerationLifecycle(
            view,
            self._store,
            self._log,
            report,
            fold=fold,
            started=started,
            check=lambda topics: self._offset_check.check(beginning(topics)),
        )
        self._run: BatchQuery | None = None
        self._followed: dict[str, Generation] = {}
        self._looked = self._pause = float("-inf")
        tune(spark)

    def step(self, seconds: float = 0.1) -> None:
        """Checks the run and the registry, and starts a new run where needed; else waits for so many seconds.

        Raises:
            LogGap: topics no longer hold what the view must fold next, and Spark reads no archive; when called again,
                it checks every five seconds whether the view was rebuilt.
            InfrastructureError: the log, the store or Spark cannot be reached; call it again later.
        """
        now = time.monotonic()
        if self.stopped or now < self._pause:
            time.sleep(min(seconds, max(0.0, self._pause - now)) if not self.stopped else seconds)
            return
        try:
            if now - self._looked >= self._look:
                self._looked = now
                self._restart_if_changed(self._lifecycle.look())
            if self._run is not None and self._run.wait(seconds):
                self._end()
        except OutOfStep as why:
            self._report("out of step", {"view": self.view.name, "why": str(why)})
            self._end()
            self._pause = time.monotonic() + random.uniform(0.0, 0.3)  # so that two streams do not retry together
        except ContractError as error:
            self._report("view stopped", {"view": self.view.name, "why": str(error)})
            self._end()
            self.stopped = str(error)
        except LogGap:
            self._end()
            self._pause = time.monotonic() + _GAP_SECONDS
            raise
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Ends the run and closes connections."""
        self._end()
        self._log.close()
        self._store.close()

    def _restart_if_changed(self, found: Mapping[str, Generation]) -> None:
        if self._run is not None and found.keys() == self._followed.keys():
            return
        self._end()
        run, drivers, unreadable = secrets.token_hex(6), list[MicroBatchDriver](), dict[str, ContractError]()
        for generation in found.values():
            try:
                checkpoints = self._lifecycle.checkpoints(generation)
            except ContractError as error:
                unreadable[generation.id] = error
                continue
            if checkpoints is not None:
                drivers.append(self._driver_of(generation, checkpoints, run))
        for id_, why in unreadable.items():
            if not drivers:
                raise why
            self._lifecycle.reporter.stopped(found[id_], str(why))
        self._followed = {id_: found[id_] for id_ in [*(driver.generation.id for driver in drivers), *unreadable]}
        drivers = self._offset_check.within(drivers, self._report)
        if drivers:
            for driver in drivers:
                self._reached(driver)
            self._run = BatchQuery(
                self._spark,
                drivers,
                self._store,
                self._ports.kafka,
                self._reached,
                trigger=self._trigger,
                most=self._most,
            )
            generations = ", ".join(driver.generation.id for driver in drivers)
            details = {"view": self.view.name, "generations": generations, "run": run}
            self._report("streaming", details)

    def _driver_of(self, generation: Generation, checkpoints: Mapping[int, Any], run: str) -> MicroBatchDriver:
        ports = self._ports
        return MicroBatchDriver(
            self.view,
            generation,
            checkpoints,
            run,
            open_store=ports.open_store,
            open_log=ports.open_log,
            job=self._job,
            max_parked=self._max_parked,
        )

    def _reached(self, driver: MicroBatchDriver) -> None:
        self._lifecycle.reporter.parked(driver.generation, driver.checkpoints)
        self._lifecycle.reached(driver.generation, driver.checkpoints)

    def _end(self) -> None:
        run, self._run, self._followed = self._run, None, {}
        self._looked = float("-inf")
        if run is not None:
            run.close()
