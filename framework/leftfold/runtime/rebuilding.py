"""Assembles a rebuild: log, view store, the engine that runs tasks, and the refresh of computed views."""

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
from leftfold.engine.rebuild.planner import EngineChoice, RebuildPlan, choose_engine, plan_to, together
from leftfold.engine.rebuild.rebuilder import (
    PassRunner,
    Rebuild,
    RebuildOptions,
    Runner,
    rebuild_together,
    run_here_together,
)
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import run_here
from leftfold.engine.streaming.computed_rows import batch_of, no_beginning
from leftfold.engine.verify.verification import Sample, Verify
from leftfold.engine.views.claims import folded_by, mixture
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
from leftfold.runtime.toolbox import Workbench, check_addresses, store_of, workbench

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from leftfold.spark.core.session import SparkSettings
    from leftfold.spark.sql.incremental import Refreshed

__all__ = ["Rebuilding", "cores_of", "engine_meant", "kept", "session_of", "spark_settings"]


def kept(view: TableView[Any, Any], allowed: Refreshed, kafka: str | None, redis: str | None) -> Refreshed:
    """How a view is kept whose SQL allows something; where no server answers, as the SQL allows.

    A stream that stands ahead of a trimmed topic's start goes on. Without one the view is computed from archive and
    topic again and again, although its SQL would allow a stream.
    """
    if not allowed.incremental:
        return allowed
    topics = [names.events(category) for category in view.categories]
    try:
        with ClusterAdmin(kafka_settings(kafka)) as cluster:
            starts: Position = cluster.starts(topics)
    except LeftfoldError:
        return allowed
    gone = no_beginning(topics, starts)
    if not gone:
        return allowed
    if _streams(view, starts, redis):
        return replace(
            allowed, why=f"{allowed.why}; its stream is past the trim, and must not lose its checkpoint: {gone}"
        )
    return replace(allowed, incremental=False, why=f"{gone}; its SQL would allow a stream", groups=())


def _streams(view: TableView[Any, Any], starts: Position, redis: str | None) -> bool:
    """Whether a stream wrote what readers see, and is past where the topics begin."""
    try:
        with store_of(redis) as store:
            live = store.registry(view.name).live_of(view.hash)
            checkpoints = store.checkpoints(live) if live is not None else {}
    except LeftfoldError:
        return False
    return live is not None and batch_of(checkpoints) is not None and covered(live, checkpoints).covers(starts)


_LOCAL = re.compile(r"local\[(?P<cores>\d+)\]")
_ELSEWHERE = 2


def engine_meant(plans: Sequence[RebuildPlan], engine: str, master: str | None) -> EngineChoice:
    """Where views are rebuilt, and why; what is installed and which master is named count, too.

    Args:
        engine: as it was typed: `auto`, `local` or `spark`.

    Raises:
        ConfigurationError: one of them needs Spark, and --engine local was said.
    """
    if engine == "local":
        for plan in plans:
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
    """How many tasks run at once where nobody says so: every core of this machine, or two of a cluster."""
    if engine == "local":
        return 1
    found = _LOCAL.fullmatch(master or "")
    if found:
        return int(found["cores"])
    here = master is None or master.startswith("local")
    return os.cpu_count() or 1 if here else _ELSEWHERE


class Rebuilding:
    """Rebuilds views one after another with one engine.

    Args:
        given: the options that were typed, for the command that continues after an interruption.
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
        self._runner: Runner = run_here
        self._together: PassRunner = run_here_together
        self._session: Any = None

    @contextmanager
    def engine(self, engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[None]:
        """What runs the tasks while the block runs; `py_files` are sent to executors elsewhere.

        Raises:
            ConfigurationError: Spark or Java is missing, or nobody says where the servers are.
            InfrastructureError: Spark does not start.
        """
        check_addresses(*self._servers)
        with session_of(engine, master, py_files) as session:
            if session is not None:
                self.use(session)
            yield

    def use(self, session: SparkSession, warn: Callable[[str], None] = note) -> None:
        """Runs the tasks on a session from here on.

        Args:
            warn: told of events that a view passes over.
        """
        self._session, self._warn = session, warn
        from leftfold.spark.core import job as on_spark

        self._runner, self._together = on_spark.spark_runner(session), on_spark.spark_pass_runner(session)

    def refreshed(self, view: TableView[Any, Any]) -> Refreshed:
        """How a view that Spark computes is kept up to date, its SQL checked."""
        from leftfold.spark.queries.compute import refreshed

        found: Refreshed = refreshed(self._session, view)
        return found

    def plans(self, views: Sequence[View[Any, Any]], as_of: str = "", *, anyway: bool = False) -> list[RebuildPlan]:
        """What rebuilds of views that read the same topics would read now; no engine is needed.

        Args:
            as_of: where to stop; '' = at the end of the log. anyway: also where nothing has happened yet.

        Raises:
            LogGap: the log does not hold all of that. Usage: no event lies before `as_of`.
        """
        first, *others = views
        place = self._places[first.name] = self._place(first, as_of)
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
        """Says what is going to be done, does it and shows how far it is.

        Args:
            fold: which code folds. It stops at the place that `plans` found, if one was named.
        """
        try:
            with shown(view.name) as report, self.opened(view, report, fold) as rebuild:
                plan = rebuild.plan(self._places.get(view.name))
                if not quiet:
                    note_lines(str(self._meant(plan)).split("\n"))
                result = rebuild.run(plan)
            if self.options.swap_anyway and result.swapped:
                # Tails of other code stand by for it, which only --anyway permits.
                with workbench(*self._servers) as bench:
                    for said in mixture(bench.store, bench.store.registry(view.name), view, fold):
                        note(said)
            return result
        except KeyboardInterrupt:
            note(f"interrupted; the live generation of {view.name} is as it was. Go on: {self._again([view])}")
            raise

    def run_together(
        self, views: Sequence[View[Any, Any]], *, folds: Mapping[str, str], quiet: bool
    ) -> list[RebuildResult]:
        """The same for several views that read the same topics, in one pass over them."""
        names = ", ".join(view.name for view in views)
        try:
            with ExitStack() as stack:
                report = stack.enter_context(shown(names if len(names) < 40 else f"{len(views)} views"))
                rebuilds = [stack.enter_context(self.opened(view, report, folds.get(view.name, ""))) for view in views]
                plan = rebuilds[0].plan()
                if not quiet:
                    note_lines(together([self._meant(rebuild.like(plan)) for rebuild in rebuilds]).split("\n"))
                return rebuild_together(rebuilds, plan, self._together)
        except KeyboardInterrupt:
            note(f"interrupted; the live generations of {names} are as they were. Go on: {self._again(views)}")
            raise

    def sampled(self, view: View[Any, Any], share: float, fold: str = "") -> Sample:
        """A share of the rows folded with this code and compared with the live ones; nothing is written."""
        with workbench(*self._servers) as bench, shown(view.name) as report:
            live = resolve(bench.store.registry(view.name), view, "live")
            if said := folded_by(live, fold):
                note(said)
            verify = Verify(
                view,
                bench.store,
                open_log=bench.open_log,
                open_store=bench.open_store,
                run=self._runner,
                cores=self.options.cores,
                report=report,
            )
            return verify.sample(live, share)

    def _again(self, views: Sequence[View[Any, Any]]) -> str:
        """The command that continues an interrupted rebuild, with all options that were given."""
        return shlex.join(["leftfold", "rebuild", *(view.name for view in views), *self._given])

    def _meant(self, plan: RebuildPlan) -> RebuildPlan:
        """A plan as it runs here or on Spark."""
        return plan.in_process if self._session is None else plan

    def _place(self, view: View[Any, Any], as_of: str) -> Position | None:
        kafka, _, archive = self._servers
        return place_meant(view, as_of, kafka, archive) if as_of else None

    @contextmanager
    def opened(
        self, view: View[Any, Any], report: Callable[[RebuildProgress], None], fold: str = ""
    ) -> Iterator[Rebuild]:
        """The rebuild of a folded view, or the refresh of one that is computed as a whole.

        Args:
            fold: which code folds; a refresh is never gone on with, so it needs none.

        Raises:
            ConfigurationError: the view needs Spark, which does not run here.
        """
        kind, run = (Rebuild, self._runner) if view.folded else (Refresh, self._computing(view))
        with workbench(*self._servers) as bench:
            yield self._rebuild(
                kind,
                view,
                bench,
                run=run,
                report=report,
                options=replace(self.options, fold=fold if view.folded else ""),
            )

    def _rebuild(self, kind: type[Rebuild], view: View[Any, Any], bench: Workbench, **rest: Any) -> Rebuild:
        servers = {"open_log": bench.open_log, "open_reader": bench.open_reader, "open_sink": bench.open_sink}
        return kind(view, bench.store, **{"options": self.options, **servers, **rest})

    def _computing(self, view: View[Any, Any]) -> Runner:
        from leftfold.spark.queries.query_refresh import query_runner

        if self._session is None:
            raise ConfigurationError(f"view {view.name} is computed by Spark; leave --engine local out")
        run: Runner = query_runner(self._session, self._warn)
        return run


@contextmanager
def session_of(engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[SparkSession | None]:
    """A Spark session while the block runs; None when this process does the work.

    Raises:
        ConfigurationError: Spark or Java is missing.
        InfrastructureError: Spark does not start.
    """
    if engine == "local":
        yield None
        return
    from leftfold.spark.core import session as spark

    note("starting Spark")
    with spark.spark_session(spark_settings(master, py_files)) as session:
        yield session


def spark_settings(master: str | None, py_files: Sequence[Path] = ()) -> SparkSettings:
    """Spark's settings, with a Java that is there."""
    from leftfold.spark.core.session import SparkSettings

    given: dict[str, Any] = {"master": master, "py_files": tuple(py_files) or None}
    settings = SparkSettings(**{name: value for name, value in given.items() if value is not None})
    if settings.java_home is not None:
        return settings
    from leftfold.local import java_home

    return settings.model_copy(update={"java_home": java_home()})
