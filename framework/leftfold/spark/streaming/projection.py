"""Keeps views at the end of the log by Spark structured streaming, seconds behind it, on any number of machines."""

from __future__ import annotations

import random
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.archive.gaps import beginning
from leftfold.engine.streaming.microbatch import GenerationLifecycle, MicroBatchDriver, OutOfStep
from leftfold.engine.streaming.microbatch_task import MicroBatchTask
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError, LogGap
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import LogReader, ViewStore
from leftfold.spark.core.offsets import Reach
from leftfold.spark.streaming.query import BatchQuery, QueryOptions

__all__ = ["TUNED", "StreamPorts", "ViewStream", "tune"]

Report = Callable[[str, Mapping[str, Any]], None]
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
        most: int = 200_000,
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
        self._options = QueryOptions(ports.kafka, trigger, most)
        self._store, self._log = ports.open_store(), ports.open_reader()
        remedy = _REMEDY.format(view=view.name, archive=shlex.quote(ports.archive))
        self._reach = Reach(spark, ports.kafka, view.name, remedy)
        self._course = GenerationLifecycle(
            view,
            self._store,
            self._log,
            report,
            fold=fold,
            started=started,
            check=lambda topics: self._reach.check(beginning(topics)),
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
                self._restart_if_changed(self._course.look())
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
        run, courses = secrets.token_hex(6), []
        for generation in found.values():
            checkpoints = self._course.checkpoints(generation)
            if checkpoints is not None:
                courses.append(self._course_of(generation, checkpoints, run))
        self._followed = {course.generation.id: course.generation for course in courses}
        courses = self._reach.within(courses, self._report)
        if courses:
            for course in courses:
                self._course.reached(course.generation, course.checkpoints)
            self._run = BatchQuery(self._spark, courses, self._store, self._options, self._reached)
            generations = ", ".join(course.generation.id for course in courses)
            details = {"view": self.view.name, "generations": generations, "run": run}
            self._report("streaming", details)

    def _course_of(self, generation: Generation, checkpoints: Mapping[int, Any], run: str) -> MicroBatchDriver:
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

    def _reached(self, course: MicroBatchDriver) -> None:
        self._course.reached(course.generation, course.checkpoints)

    def _end(self) -> None:
        run, self._run, self._followed = self._run, None, {}
        self._looked = float("-inf")
        if run is not None:
            run.close()
