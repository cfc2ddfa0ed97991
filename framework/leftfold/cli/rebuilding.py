"""Puts a rebuild together: the log, the sink and the engine that runs its tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.cli.console import note
from leftfold.cli.progress import shown
from leftfold.connection import kafka_settings, redis_settings, ring
from leftfold.engine.bulk_local import run_here
from leftfold.engine.plan import RebuildPlan
from leftfold.engine.rebuild import Rebuild, RebuildOptions, Runner
from leftfold.engine.rebuild_progress import Progress
from leftfold.engine.rebuild_result import RebuildResult
from leftfold.engine.refresh import Refresh
from leftfold.errors import ConfigurationError
from leftfold.query import TableView
from leftfold.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from leftfold.spark.settings import SparkSettings
    from leftfold.spark.sql.incremental import Refreshed

__all__ = ["Rebuilding", "cores_of", "spark_settings"]

_LOCAL = re.compile(r"local\[(?P<cores>\d+)\]")
_ELSEWHERE = 2


def cores_of(engine: str, master: str | None) -> int:
    """How many tasks run at once where nobody says so: every core of this machine, or two of a cluster."""
    if engine == "local":
        return 1
    found = _LOCAL.fullmatch(master or "")
    if found:
        return int(found["cores"])
    here = master is None or master.startswith("local")
    return os.cpu_count() or 1 if here else _ELSEWHERE


class Rebuilding:
    """Rebuilds views one after another with one engine."""

    def __init__(self, kafka: str | None, redis: str | None, *, keep: float, cores: int, anyway: bool) -> None:
        self._kafka, self._redis = kafka_settings(kafka), redis_settings(redis)
        self._options = RebuildOptions(cores=cores, keep=keep, swap_anyway=anyway)
        self._runner: Runner = run_here
        self._session: Any = None

    @contextmanager
    def engine(self, engine: str, master: str | None) -> Iterator[None]:
        """What runs the tasks while the block runs.

        Raises:
            ConfigurationError: Spark or Java is missing.
            InfrastructureError: Spark does not start.
        """
        if engine == "local":
            yield
            return
        spark = ring("leftfold.spark.session")
        note("starting Spark")
        with spark.spark_session(spark_settings(master)) as session:
            self.use(session)
            yield

    def use(self, session: SparkSession) -> None:
        """Runs the tasks on a session from here on."""
        self._session = session
        self._runner = ring("leftfold.spark.runner").spark_runner(session)

    def refreshed(self, view: TableView[Any, Any]) -> Refreshed:
        """How a view that Spark computes is kept up to date, its SQL checked."""
        found: Refreshed = ring("leftfold.spark.computing").refreshed(self._session, view)
        return found

    def plan(self, view: View[Any, Any]) -> RebuildPlan:
        """What a rebuild would read now."""
        with self.opened(view, lambda progress: None) as rebuild:
            return rebuild.plan()

    def run(self, view: View[Any, Any], *, quiet: bool) -> RebuildResult:
        """Says what is going to be done, does it and shows how far it is."""
        try:
            with shown(view.name) as report, self.opened(view, report) as rebuild:
                plan = rebuild.plan()
                if not quiet:
                    note(str(plan))
                return rebuild.run(plan)
        except KeyboardInterrupt:
            note(f"interrupted; the live generation of {view.name} is as it was")
            raise

    @contextmanager
    def opened(self, view: View[Any, Any], report: Callable[[Progress], None]) -> Iterator[Rebuild]:
        """The rebuild of a folded view, or the refresh of one that is computed as a whole.

        Raises:
            ConfigurationError: the view needs Spark, which does not run here.
        """
        kind, run = (Rebuild, self._runner) if view.folded else (Refresh, self._computing(view))
        redis = ring("leftfold.redis")
        store = redis.RedisViewStore(self._redis)
        try:
            yield kind(
                view,
                store,
                open_log=partial(ring("leftfold.kafka.bulk").KafkaBulkLog, self._kafka),
                open_reader=partial(ring("leftfold.kafka.reader").KafkaLogReader, self._kafka),
                open_sink=partial(redis.BulkSink, self._redis),
                run=run,
                options=self._options,
                report=report,
            )
        finally:
            store.close()

    def _computing(self, view: View[Any, Any]) -> Runner:
        if self._session is None:
            raise ConfigurationError(f"view {view.name} is computed by Spark; leave --engine local out")
        run: Runner = ring("leftfold.spark.query_runner").query_runner(self._session)
        return run


def spark_settings(master: str | None) -> SparkSettings:
    """Spark's settings, with a Java that is there."""
    made = ring("leftfold.spark.settings").SparkSettings
    settings: SparkSettings = made() if master is None else made(master=master)
    if settings.java_home is not None:
        return settings
    return settings.model_copy(update={"java_home": ring("leftfold.local").java_home()})
