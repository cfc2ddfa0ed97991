"""Keeps a query view up to date by Spark structured streaming over tables of events."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from leftfold.engine.log_gaps import beginning
from leftfold.engine.streaming.computed_rows import QueryWriter
from leftfold.engine.views.cleanup import discard, remove, sweep
from leftfold.engine.views.generations import BUCKETS, log_mismatch, open_generation, topic_ids, topics_of
from leftfold.engine.views.leases import exclusive_lease, members
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.computed_views import QueryView
from leftfold.model.position import Position
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.protocols import Report
from leftfold.spark.core.offsets import OffsetCheck, first_offsets, kafka_source
from leftfold.spark.core.task_io import SkippedValues, cause_of
from leftfold.spark.queries.compute import compute, own_session, refreshed
from leftfold.spark.queries.incremental_batches import (
    CheckpointDirectory,
    StreamBatches,
    StreamPlaces,
    StreamWork,
)
from leftfold.spark.queries.incremental_batches import sweep as sweep_checkpoints
from leftfold.spark.tables.columns import EventTable
from leftfold.spark.tables.frames import typed

__all__ = ["QueryStream"]


_REMEDY = (
    "compute it from archive and topic: leftfold rebuild {view} --archive DIR; with LEFTFOLD_ARCHIVE_DIR=DIR set, or "
    "archive = 'DIR' under [tool.leftfold] in pyproject.toml, this does so repeatedly: leftfold run {view}"
)

_SETTINGS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

_LOST = re.compile(
    r"\[(CANNOT_LOAD_STATE_STORE\.(CANNOT_(FIND|READ)_\w+|INVALID_CHANGE_LOG_READER_VERSION|INVALID_CHECKPOINT_LINEAGE|"
    r"UNEXPECTED_FILE_SIZE|(KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE)|CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED|"
    r"STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY|STREAMING_CHECKPOINT_MISSING_METADATA_FILE)\b|"
    r"FileNotFoundException: (?=[^\n]*/state/\d+/\d+/)[^\n]*(does not exist|No such file)|ZipException: |"
    r"batch \d+ doesn't exist|Failed to read log file|Checksum error: "
)
"""Spark's messages about a checkpoint directory in which files are lost or damaged.

The other conditions of CANNOT_LOAD_STATE_STORE may be transient: a lock that a killed task holds, too little memory, or
a full disk. Where Spark gives no condition of its own, its message names the cause, which may be a lost file.
"""


class _CheckpointLost(InfrastructureError):
    """Spark cannot read files of a checkpoint directory."""


class _Inputs(NamedTuple):
    """What a stream is computed from: the fingerprints of its reference files, and its topics with ends and ids."""

    files: Mapping[str, str]
    topics: Mapping[str, int]
    ends: Position
    ids: Mapping[str, str]


class QueryStream:
    """Runs one incremental query view; for one thread.

    Args:
        shuffles: the number of partitions for aggregates; fixed for the life of a checkpoint. every: seconds between
            two batches. keep: seconds for which a generation that is replaced stays.
        report: called with what an operator should know: (what, details).
    """

    def __init__(
        self,
        spark: SparkSession,
        view: QueryView[Any, Any],
        places: StreamPlaces,
        *,
        shuffles: int = 2,
        every: float = 0.2,
        keep: float = 60.0,
        report: Report = lambda what, details: None,
    ) -> None:
        how = refreshed(spark, view)
        if not how.incremental:
            raise ConfigurationError(f"view {view.name} cannot be kept by a stream: {how.why}")
        self._spark, self._view, self._places = spark, view, places
        self._groups, self._shuffles, self._every, self._keep = how.groups, shuffles, every, keep
        self._report = report
        self._offset_check = OffsetCheck(spark, places.kafka, view.name, _REMEDY.format(view=view.name))

    def run(self, stop: threading.Event) -> None:
        """Streams until `stop` is set.

        Raises:
            Fenced: another run computes the view or has taken over, or the store lost or rolled back what was
                written; run again, and the bucket checkpoints decide where it continues.
            ContractError: an event cannot be read, or two groups have one key.
            LogGap: events that it must read were deleted from a topic; it reads no archive.
            ConfigurationError: the live generation was computed from another topic of that name.
            UnusableReference: a reference file is not there, or is not what its record says.
            InfrastructureError: the log, the store or Spark cannot be reached.
        """
        run = secrets.token_hex(8)
        sweep(self._places.store, self._view, self._keep)
        inputs = self._inputs()
        live = self._places.store.registry(self._view.name).live_of(self._view.hash)
        resumed = self._resume(run, inputs)
        if resumed is not None:
            if self._has_continued(resumed, stop):
                return
            inputs = self._inputs()  # the stream may have run for days
        with ExitStack() as lease:
            batches = self._begin(run, inputs, live, lease)
            try:
                self._stream(batches, stop)
            except BaseException as error:
                if batches.writer is None:
                    discard(self._places.store, batches.generation, error, resumable=False)
                raise
            if batches.writer is None:
                remove(self._places.store, batches.generation)

    def _inputs(self) -> _Inputs:
        """The reference files and topics as they are now."""
        files = {name: file.fingerprint() for name, file in self._view.references.items()}
        with closing(self._places.open_log()) as log:
            topics = topics_of(self._view, log.partitions)
            inputs = _Inputs(files, topics, log.stable_ends(topics), topic_ids(log, topics))
        if why := self._other(inputs.ids):
            raise ConfigurationError(why)
        return inputs

    def foreign(self) -> str:
        """Why the live generation belongs to other topics, and what to type; '' when it belongs to these."""
        with closing(self._places.open_log()) as log:
            return self._other(topic_ids(log, topics_of(self._view, log.partitions)))

    def _other(self, ids: Mapping[str, str]) -> str:
        live = self._places.store.registry(self._view.name).live_of(self._view.hash)
        return log_mismatch(live, ids) if live is not None else ""

    def checkpoint(self, generation: Generation) -> CheckpointDirectory:
        """The checkpoint directory of a generation."""
        return CheckpointDirectory(self._places.checkpoints, self._view.name, generation.id)

    def _resume(self, run: str, inputs: _Inputs) -> StreamBatches | None:
        """The live generation, if its bucket checkpoints and its checkpoint directory agree."""
        store, view = self._places.store, self._view
        registry = store.registry(view.name)
        sweep_checkpoints(self._places.checkpoints, view.name, registry.generations)
        live = registry.live_of(view.hash)
        if live is None or dict(live.topics) != dict(inputs.topics):
            return None
        try:
            writer = QueryWriter(view, live, store, self._groups, run)
        except ViewNotBuilt as error:
            self._report("computed from the start", {"view": view.name, "why": str(error)})
            return None
        checkpoint = self.checkpoint(live)
        before = next(iter(writer.checkpoints.values())).token.rpartition(".")[0]
        found = checkpoint.resumable(before, writer.batch, inputs.files)
        if found is None:
            why = "the buckets' checkpoints and Spark's checkpoint directory do not agree"
            self._report("computed from the start", {"view": view.name, "why": why})
            return None
        self._offset_check.check(beginning(inputs.topics) | checkpoint.committed(found))
        # Asked behind the read of the tokens: of a rebuild that begins later, the claim fences this run.
        if members(store, names.rebuilds(view.name)):
            raise Fenced(
                f"view {view.name} is being computed by another process; its stream waits until that has ended"
            )
        if not writer.claim():
            raise Fenced(f"view {view.name}: generation {live.id} is written by another run; this run ends")
        self._report("stream continues", {"view": view.name, "generation": live.id, "batch": writer.batch})
        batches = self._batches(live, run, inputs.ends, checkpoint.take(found, run))
        batches.writer = writer
        return batches

    def _begin(self, run: str, inputs: _Inputs, live: Generation | None, lease: ExitStack) -> StreamBatches:
        """A new generation and a new checkpoint directory; its first batch is the whole log.

        Until it is live, `lease` keeps other runs and rebuilds of the view from removing it, or from beginning one.

        Args:
            live: the live generation, if any, that cannot be continued.
        """
        store, view, topics, ends = self._places.store, self._view, inputs.topics, inputs.ends
        try:
            me = lease.enter_context(
                exclusive_lease(store, names.rebuilds(view.name), f"view {view.name} is being computed")
            )
        except InfrastructureError as error:
            if not members(store, names.rebuilds(view.name)):
                raise
            raise Fenced(str(error)) from error
        sweep(store, view, self._keep)
        now = store.registry(view.name).live_of(view.hash)
        if now is not None and now.id != (live and live.id):
            raise Fenced(f"view {view.name}: another run has made generation {now.id} live meanwhile; this run ends")
        self._offset_check.check(beginning(topics))
        generation = open_generation(store, view, topics, Phase.BULK, BUCKETS, ids=inputs.ids, attempt=me)
        path = self.checkpoint(generation).begin(run, inputs.files)
        batches = self._batches(generation, run, ends, path)
        batches.release = lease.close
        self._report("stream begins", {"view": view.name, "generation": generation.id})
        if not any(ends.next_offset(t, p) for t, count in topics.items() for p in range(count)):
            batches.seal([], -1, ends)
        return batches

    def _has_continued(self, batches: StreamBatches, stop: threading.Event) -> bool:
        """Streams into the live generation until `stop` is set; False when its checkpoint has lost files.

        Raises:
            Fenced: another run has moved the checkpoint away, so that the files are not lost.
        """
        try:
            self._stream(batches, stop)
        except _CheckpointLost as error:
            if stop.is_set():
                raise
            if batches.writer is None or not batches.writer.claim():
                raise Fenced(f"view {self._view.name}: another run has taken over its checkpoint") from error
            self._report("computed from the start", {"view": self._view.name, "why": str(error)})
            return False
        return True

    def _batches(self, generation: Generation, run: str, ends: Position, path: Path) -> StreamBatches:
        what = StreamWork(self._view, self._places, self._groups, self._shuffles, self._report)
        return StreamBatches(what, generation, run, ends, path, SkippedValues(self._spark))

    def _stream(self, batches: StreamBatches, stop: threading.Event) -> None:
        session = own_session(self._spark, shuffles=self._shuffles)
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        frame = compute(session, self._view, partial(self._open_table, batches.generation.topics, batches.misfits))
        writer = (
            frame.writeStream.outputMode("update")
            .option("checkpointLocation", str(batches.path))
            .trigger(processingTime=f"{int(self._every * 1000)} milliseconds")
            .foreachBatch(batches.take)
        )
        try:
            _wait(writer.start(), stop)
        except (PySparkException, Py4JError, ConnectionError) as error:  # the latter two when the JVM has died
            raise batches.failure or self._lost(batches.path, error) or cause_of(error) from error

    def _lost(self, path: Path, error: Exception) -> _CheckpointLost | None:
        """The error of a checkpoint directory with lost or damaged files, if it has caused an error of Spark."""
        if (found := _LOST.search(str(error))) is None:
            return None
        return _CheckpointLost(
            f"view {self._view.name}: files of Spark's checkpoint {path} are lost or damaged "
            f"({found[0].lstrip('[')}); the view is computed from the start of the log"
        )

    def _open_table(
        self, topics: Mapping[str, int], misfits: SkippedValues, session: SparkSession, table: EventTable
    ) -> DataFrame:
        """The events of one class as a streaming DataFrame, from the start of the log.

        A batch ends where the log is stable, so no decision is split: a limit on the size of a batch would split some.
        """
        topic = names.events(table.event.__leftfold__.category)
        starts = first_offsets(topic, topics[topic])
        source = kafka_source(session.readStream, [topic], self._places.kafka, startingOffsets=starts)
        frame = typed(source, table.schema, table.row, misfits)
        if self._view.late is None:
            return frame
        return frame.withWatermark("_time", f"{int(self._view.late.total_seconds() * 1000)} milliseconds")


def _wait(query: StreamingQuery, stop: threading.Event) -> None:
    """Waits until `stop` is set and ends the query; after an error, one of ending it is not raised."""
    try:
        while not stop.is_set():
            if query.awaitTermination(1):
                raise Fenced("another run of this stream was started in the same Spark; this run ends")
    except BaseException:
        with suppress(Exception):
            query.stop()
        raise
    query.stop()
