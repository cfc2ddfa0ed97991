"""Views kept at the end of the log by Spark's structured streaming, seconds behind it, on any number of machines."""

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
_MEND = (
    "compute it from archive and topic, and the stream goes on behind that by itself: "
    "leftfold rebuild {view} --archive {archive}"
)
_HOLE_SECONDS = 5.0
"""How soon somebody may have mended a view that a stream could not go on with."""

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
"""What a session for streaming folds is told; it needs no state store, since rows live in the views' store."""


def tune(spark: SparkSession) -> None:
    """Sets up a session for streaming folds."""
    for name, value in TUNED.items():
        spark.conf.set(name, value)


@dataclass(frozen=True)
class StreamPorts:
    """What streaming folds are given; `open_store` and `open_log` are shipped to tasks, so they must be picklable.

    Args:
        kafka: the properties of a Java client, for Spark's own reader.
        archive: where the log's archive is, as messages say it that name a command to type.
    """

    open_store: Callable[[], ViewStore]
    open_log: OpenBulkLog
    open_reader: Callable[[], LogReader]
    kafka: Mapping[str, str]
    archive: str = "DIR"


class ViewStream:
    """Brings the generations of one view along; the loop of whoever owns it calls `step`.

    Args:
        trigger: seconds from batch to batch; 0 = as they come. most: how many events a batch holds at most.
        look: seconds between looks at the registry. job: how the tasks of a batch work.
        max_parked: how many keys may be parked before the view stops. fold: says which code folds.
        started: the views at which this process has looked before, shared by the streams that it makes.
        report: told what an operator should know: (what, details).
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
        mend = _MEND.format(view=view.name, archive=shlex.quote(ports.archive))
        self._reach = Reach(spark, ports.kafka, view.name, mend)
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
        """Looks at the run and at the registry, and begins anew where need be; waits for so long when all is well.

        Raises:
            LogGap: topics no longer hold what the view must fold next, and Spark reads no archive; called again, it
                looks every five seconds whether somebody has rebuilt the view.
            InfrastructureError: the log, the store or Spark is not there; call it again later.
        """
        now = time.monotonic()
        if self.stopped or now < self._pause:
            time.sleep(min(seconds, max(0.0, self._pause - now)) if not self.stopped else seconds)
            return
        try:
            if now - self._looked >= self._look:
                self._looked = now
                self._begin_anew_if(self._course.look())
            if self._run is not None and self._run.wait(seconds):
                self._end()
        except OutOfStep as why:
            self._report("out of step", {"view": self.view.name, "why": str(why)})
            self._end()
            self._pause = time.monotonic() + random.uniform(0.0, 0.3)  # spreads two of them
        except ContractError as error:
            self._report("view stopped", {"view": self.view.name, "why": str(error)})
            self._end()
            self.stopped = str(error)
        except LogGap:
            self._end()
            self._pause = time.monotonic() + _HOLE_SECONDS
            raise
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Ends the run and lets go of connections."""
        self._end()
        self._log.close()
        self._store.close()

    def _begin_anew_if(self, found: Mapping[str, Generation]) -> None:
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
            told = {"view": self.view.name, "generations": generations, "run": run}
            self._report("streaming", told)

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
