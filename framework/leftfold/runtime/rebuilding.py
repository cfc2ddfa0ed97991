"""Assembles rebuilds of views: the log, the view store, and the engine (local or Spark) that runs tasks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leftfold.engine.progress import RebuildProgress
from leftfold.engine.rebuild.planner import EngineChoice, RebuildPlan, choose_engine, joint_plan, plan_to
from leftfold.engine.rebuild.rebuilder import PassRunner, Rebuild, RebuildOptions, Runner, rebuild_together
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import run_locally, run_pass_locally
from leftfold.engine.streaming.computed_rows import batch_of, no_beginning
from leftfold.engine.verify.verification import Sample, Verify
from leftfold.engine.views.code_claims import folded_by, mixture
from leftfold.engine.views.generations import resolve
from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model import keys as names
from leftfold.model.computed_views import TableView
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import covered
from leftfold.runtime.as_of import nothing_there, place_meant
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import note, note_lines, shown
from leftfold.runtime.project import Usage
from leftfold.runtime.servers import Workbench, check_addresses, store_of, workbench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from leftfold.spark.core.session import SparkSettings
    from leftfold.spark.sql.incremental import Refreshed

__all__ = ["Rebuilding", "cores_of", "engine_for_rebuild", "kept", "session_of", "spark_settings", "verify_with"]


def kept(view: TableView[Any, Any], allowed: Refreshed, kafka: str | None, redis: str | None) -> Refreshed:
    """The refresh mode of a view that Spark computes: a stream, or computed again at intervals.

    When a topic has been trimmed, a stream whose checkpoint is past the trim continues. Without such a stream the view
    is computed from archive and topic at intervals, although its SQL allows a stream. When no server answers, the
    result is what the SQL allows.
    """
    trimmed, is_past = _trim(view, kafka, redis) if allowed.incremental else ("", False)
    if not trimmed:
        return allowed
    if is_past:
        return replace(
            allowed, why=f"{allowed.why}; its stream is past the trim, and must not lose its checkpoint: {trimmed}"
        )
    return replace(allowed, incremental=False, why=f"{trimmed}; its SQL would allow a stream", groups=())


def _trim(view: TableView[Any, Any], kafka: str | None, redis: str | None) -> tuple[str, bool]:
    """Why no stream of a view can begin ('' = it can, or no broker answers), and whether one is past the trim."""
    topics = [names.events(category) for category in view.categories]
    try:
        with ClusterAdmin(kafka_settings(kafka)) as cluster:
            starts: Position = cluster.starts(topics)
    except LeftfoldError:
        return "", False
    trimmed = no_beginning(topics, starts)
    return trimmed, bool(trimmed) and _streams(view, starts, redis)


def _streams(view: TableView[Any, Any], starts: Position, redis: str | None) -> bool:
    """Whether a stream wrote the live generation and its checkpoints are past the first offsets of the topics."""
    try:
        with store_of(redis) as store:
            live = store.registry(view.name).live_of(view.hash)
            checkpoints = store.checkpoints(live) if live is not None else {}
    except LeftfoldError:
        return False
    return live is not None and batch_of(checkpoints) is not None and covered(live, checkpoints).covers(starts)


_LOCAL = re.compile(r"local\[(?P<cores>\d+)\]")
_ELSEWHERE = 2


def engine_for_rebuild(plans: Sequence[RebuildPlan], engine: str, master: str | None) -> EngineChoice:
    """Chooses the engine of a rebuild and says why; depends on the plans, the named master and installed packages.

    Args:
        engine: the value of `--engine`: `auto`, `local` or `spark`.

    Raises:
        ConfigurationError: a view needs Spark, and the engine is `local`.
    """
    for plan in plans if engine == "local" else ():
        if not plan.folded:
            raise ConfigurationError(f"view {plan.view} is computed by Spark; leave --engine local out")
    if engine != "auto":
        return EngineChoice(engine == "spark", f"--engine {engine}")
    if master:
        return EngineChoice(spark=True, why=f"--master {master}")
    named = os.environ.get("LEFTFOLD_SPARK_MASTER", "")
    if named and not named.startswith("local"):
        return EngineChoice(spark=True, why=f"LEFTFOLD_SPARK_MASTER is {named}")
    found = choose_engine(plans)
    if found.spark and all(plan.folded for plan in plans) and find_spec("pyspark") is None:
        return EngineChoice(spark=False, why="Spark is not installed")
    return found


def cores_of(engine: str, master: str | None) -> int:
    """The default number of concurrent tasks: all cores of this machine, or two on a Spark cluster."""
    if engine == "local":
        return 1
    if found := _LOCAL.fullmatch(master or ""):
        return int(found["cores"])
    here = master is None or master.startswith("local")
    return os.cpu_count() or 1 if here else _ELSEWHERE


class Rebuilding:
    """Rebuilds of views, one after another or in one pass, with one engine.

    Args:
        given: the options of the command line, for the printed command that continues after an interruption.
    """

    def __init__(
        self,
        kafka: str | None,
        redis: str | None,
        options: RebuildOptions,
        archive: str | None = None,
        *,
        given: Sequence[str] = (),
    ) -> None:
        self._servers, self.options = (kafka, redis, archive), options
        self._given = tuple(given)
        self._places: dict[str, Position | None] = {}
        self._runner: Runner = run_locally
        self._together: PassRunner = run_pass_locally
        self._session: Any = None

    @contextmanager
    def engine(self, engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[None]:
        """Runs the engine while the block runs; `py_files` are sent to Spark's executors.

        Raises:
            ConfigurationError: Spark or Java is missing, or the servers' addresses are not configured.
            InfrastructureError: Spark does not start.
        """
        check_addresses(*self._servers)
        with session_of(engine, master, py_files) as session:
            if session is not None:
                self.use(session)
            yield

    def use(self, session: SparkSession, warn: Callable[[str], None] = note) -> None:
        """Runs all further tasks on a Spark session.

        Args:
            warn: called with a message about events that a view skips.
        """
        self._session, self._warn = session, warn
        from leftfold.spark.core.job import spark_pass_runner, spark_runner

        self._runner, self._together = spark_runner(session), spark_pass_runner(session)

    def refreshed(self, view: TableView[Any, Any]) -> Refreshed:
        """The refresh mode of a view that Spark computes, after a check of its SQL."""
        from leftfold.spark.queries.compute import refreshed

        return refreshed(self._session, view)

    def plans(self, views: Sequence[View[Any, Any]], as_of: str = "", *, anyway: bool = False) -> list[RebuildPlan]:
        """The plans for rebuilds of views that read the same topics; needs no engine.

        Args:
            as_of: the position to stop at, as typed; '' = the end of the log. anyway: also plan when no event is
                before `as_of`.

        Raises:
            LogGap: the log does not hold all records of the plan. Usage: no event is before `as_of`.
        """
        first, *others = views
        kafka, _, archive = self._servers
        place = self._places[first.name] = place_meant(first, as_of, kafka, archive) if as_of else None
        cores, buckets = self.options.cores, self.options.buckets
        with workbench(*self._servers) as bench:
            rebuild = self._rebuild(Rebuild, first, bench)
            plan = rebuild.plan(place)
            if place is not None and not plan.events:
                if not anyway and rebuild.plan().events:
                    raise Usage(f"{nothing_there(first, as_of)}. To build it all the same: --anyway")
                note(nothing_there(first, as_of))
        return [plan, *(plan_to(one, plan.topics, plan.ends, cores=cores, buckets=buckets) for one in others)]

    def run(self, view: View[Any, Any], *, fold: str, quiet: bool) -> RebuildResult:
        """Prints the plan, rebuilds one view and shows progress; stops at the position that `plans` resolved.

        Args:
            fold: the hash of the fold's code. quiet: do not print the plan.
        """
        if isinstance(view, TableView) and not self.options.pin:
            kafka, redis, _ = self._servers
            trimmed, is_past = _trim(view, kafka, redis)
            if is_past:
                note(
                    f"view {view.name}: this ends its stream, which could not begin again: {trimmed}. Once it is "
                    f"swapped, `leftfold run` computes the view from archive and topic at intervals; Ctrl-C keeps the "
                    f"stream"
                )
        try:
            with shown(view.name) as report, self.opened(view, report, fold) as rebuild:
                plan = rebuild.plan(self._places.get(view.name))
                if not quiet:
                    note_lines(str(self._as_run(plan)).split("\n"))
                result = rebuild.run(plan)
            if self.options.swap_anyway and result.swapped:
                # Projectors of other code wait for this generation, which only --anyway permits.
                with workbench(*self._servers) as bench:
                    for warning in mixture(bench.store, bench.store.registry(view.name), view, fold):
                        note(warning)
            return result
        except KeyboardInterrupt:
            note(f"interrupted; the live generation of {view.name} is as it was. Go on: {self._again([view])}")
            raise

    def run_together(
        self, views: Sequence[View[Any, Any]], *, folds: Mapping[str, str], quiet: bool
    ) -> list[RebuildResult]:
        """Rebuilds several views that read the same topics in one pass over these topics."""
        names = ", ".join(view.name for view in views)
        try:
            with ExitStack() as stack:
                report = stack.enter_context(shown(names if len(names) < 40 else f"{len(views)} views"))
                rebuilds = [stack.enter_context(self.opened(view, report, folds.get(view.name, ""))) for view in views]
                plan = rebuilds[0].plan()
                if not quiet:
                    note_lines(joint_plan([self._as_run(rebuild.like(plan)) for rebuild in rebuilds]).split("\n"))
                return rebuild_together(rebuilds, plan, self._together)
        except KeyboardInterrupt:
            note(f"interrupted; the live generations of {names} are as they were. Go on: {self._again(views)}")
            raise

    def sampled(self, view: View[Any, Any], share: float, fold: str = "") -> Sample:
        """Folds a share of the rows with this code and compares them with the live rows; writes nothing."""
        with workbench(*self._servers) as bench, shown(view.name) as report:
            live = resolve(bench.store.registry(view.name), view, "live")
            if warning := folded_by(live, fold):
                note(warning)
            return verify_with(bench, view, self._runner, self.options.cores, report).sample(live, share)

    def _again(self, views: Sequence[View[Any, Any]]) -> str:
        """The command that continues an interrupted rebuild, with all its options."""
        return shlex.join(["leftfold", "rebuild", *(view.name for view in views), *self._given])

    def _as_run(self, plan: RebuildPlan) -> RebuildPlan:
        """The plan for this process or for Spark."""
        return plan.in_process if self._session is None else plan

    @contextmanager
    def opened(
        self, view: View[Any, Any], report: Callable[[RebuildProgress], None], fold: str = ""
    ) -> Iterator[Rebuild]:
        """The rebuild of a folded view, or the refresh of a view that Spark computes as a whole.

        Args:
            fold: the hash of the fold's code; unused by a refresh, which is never continued after an interruption.

        Raises:
            ConfigurationError: the view needs Spark, which does not run here.
        """
        kind, run = (Rebuild, self._runner) if view.folded else (Refresh, self._computing(view))
        with workbench(*self._servers) as bench:
            options = replace(self.options, fold=fold if view.folded else "")
            yield self._rebuild(kind, view, bench, run=run, report=report, options=options)

    def _rebuild(self, kind: type[Rebuild], view: View[Any, Any], bench: Workbench, **rest: Any) -> Rebuild:
        servers = {"open_log": bench.open_log, "open_reader": bench.open_reader, "open_sink": bench.open_sink}
        return kind(view, bench.store, **{"options": self.options, **servers, **rest})

    def _computing(self, view: View[Any, Any]) -> Runner:
        from leftfold.spark.queries.query_refresh import query_runner

        if self._session is None:
            raise ConfigurationError(f"view {view.name} is computed by Spark; leave --engine local out")
        return query_runner(self._session, self._warn)


def verify_with(
    bench: Workbench, view: View[Any, Any], run: Runner, cores: int, report: Callable[[RebuildProgress], None]
) -> Verify:
    """The verification of a view with the log and the store of a workbench."""
    return Verify(
        view, bench.store, open_log=bench.open_log, open_store=bench.open_store, run=run, cores=cores, report=report
    )


@contextmanager
def session_of(engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[SparkSession | None]:
    """A Spark session while the block runs; None when the engine is `local`.

    Raises:
        ConfigurationError: Spark or Java is missing.
        InfrastructureError: Spark does not start.
    """
    if engine == "local":
        yield None
        return
    from leftfold.spark.core.session import spark_session

    note("starting Spark")
    with spark_session(spark_settings(master, py_files)) as session:
        yield session


def spark_settings(master: str | None, py_files: Sequence[Path] = ()) -> SparkSettings:
    """Spark's settings, with the home of an installed Java."""
    from leftfold.spark.core.session import SparkSettings

    given: dict[str, Any] = {"master": master, "py_files": tuple(py_files) or None}
    settings = SparkSettings(**{name: value for name, value in given.items() if value is not None})
    if settings.java_home is not None:
        return settings
    from leftfold.local import java_home

    return settings.model_copy(update={"java_home": java_home()})
