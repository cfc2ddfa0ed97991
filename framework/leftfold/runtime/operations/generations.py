"""Generations of views as operators handle them: explained, verified, rebuilt, promoted, their parked rows retried."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from leftfold.client.results import describe
from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.promotion import Promotion
from leftfold.engine.rebuild.rebuilder import RebuildOptions, Runner
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import run_locally
from leftfold.engine.verify.history import History, Retried, RowRetry, RowStep
from leftfold.engine.verify.history import explain as steps_of
from leftfold.engine.verify.row_comparison import Fields, fields_of, row_and_checkpoint
from leftfold.engine.verify.verification import Throttle, Verification, throttled
from leftfold.engine.views.code_claims import folded_by
from leftfold.engine.views.generations import resolve
from leftfold.errors import ContractError
from leftfold.kafka.administration.dead_letters import record_at
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Parked
from leftfold.ports.protocols import ViewStore
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, note
from leftfold.runtime.lifecycle import folds_of
from leftfold.runtime.operations.logged_events import fields_of as event_fields
from leftfold.runtime.project import Usage, view_of
from leftfold.runtime.rebuilding import Rebuilding, cores_of, engine_for_rebuild, session_of, verify_with
from leftfold.runtime.servers import Servers, check_addresses, check_broker, store_of, workbench

__all__ = [
    "Explaining",
    "ParkedRow",
    "ParkedRows",
    "ShowProgress",
    "Verifying",
    "generation_meant",
    "parked_rows",
    "plan_locally",
    "promote_generation",
    "rebuild_locally",
    "retried",
    "verified_as",
]

ShowProgress: TypeAlias = Callable[[str], AbstractContextManager[ProgressReport]]
"""Shows the progress of something with a name while a block runs, as `leftfold.runtime.console.shown` does."""
_NEAR = 3


class Explaining:
    """Folds one row event by event and compares it with the stored row.

    Args:
        servers: Kafka, Redis and the archive, as options name them. generation: live, held, kept, a name or an id.
        progress: shows the progress of something with a name while a block runs.
    """

    def __init__(
        self, view: View[Any, Any], servers: Servers, generation: str = "live", *, progress: ShowProgress
    ) -> None:
        self.view, self._servers, self._generation, self._progress = view, servers, generation, progress
        self.position, self.stored, self.equal, self.parked = Position(), dict[str, str](), True, ""
        self.near = list[str]()

    def steps(self, key: str) -> Iterator[RowStep]:
        """The steps of an encoded key; afterwards the attributes say whether the row equals the stored one."""
        check_broker(self._servers[0])
        with workbench(*self._servers) as bench, self._progress(self.view.name) as report:
            generation = resolve(bench.store.registry(self.view.name), self.view, self._generation)
            stored, checkpoint = row_and_checkpoint(generation, key, bench.store)
            self.position = checkpoint.position
            watch = Stopwatch(report)
            watch.begin("read", History(self.view, generation, {key: self.position}).events)
            step = None
            for step in steps_of(self.view, generation, key, self.position, bench.open_log, tell=watch.tell):
                yield step
            watch.end()
            if step is None:
                self.near = _some_keys(self.view, bench.store, generation)
        folded = self._fields(step)
        self.stored, self.parked = dict(stored or {}), checkpoint.parked[key].error if key in checkpoint.parked else ""
        self.equal = (stored or None) == folded

    def _fields(self, step: RowStep | None) -> Fields | None:
        if step is None:
            return None
        version = step.touch.decoded.version if self.view.stream_keyed else None
        return fields_of(self.view, step.after, version)


def _some_keys(view: View[Any, Any], store: ViewStore, generation: Generation) -> list[str]:
    """A few keys of rows as users type them, from the first buckets that have any."""
    found: list[str] = []
    for bucket in range(generation.buckets):
        found += [view.keys.typed(key) for key in store.keys(generation, bucket, "", _NEAR - len(found))]
        if len(found) >= _NEAR:
            break
    return found


class Verifying:
    """Verifies one generation of each named view.

    Args:
        servers: Kafka, Redis and the archive, as options name them. generation: live, held, kept, a name or an id.
        deep: also compares rows and indexes. folds: fold hash of this code, by view; another code's fold is reported.
        progress: shows the progress of something with a name while a block runs. warn: called with a remark.
    """

    def __init__(
        self, servers: Servers, generation: str, *, deep: bool, folds: Mapping[str, str], progress: ShowProgress,
        warn: Callable[[str], None] = note,
    ) -> None:  # fmt: skip
        self._progress, self._warn = progress, warn
        self._servers, self._generation, self._deep, self._folds = servers, generation, deep, folds
        self._runner: Runner = run_locally
        self._cores = 1

    @contextmanager
    def engine(self, engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[None]:
        """Chooses what folds while the block runs; `py_files` are sent to executors on other machines."""
        from leftfold.spark.core.job import spark_runner

        self._cores = cores_of(engine, master)
        self.check()
        with session_of(engine, master, py_files) as session:
            if session is not None:
                self._runner = spark_runner(session)
            yield

    def check(self) -> None:
        """Checks that the servers answer, before anything slow begins.

        Raises:
            InfrastructureError: no broker answers.
        """
        check_addresses(*self._servers)
        check_broker(self._servers[0])

    def run(self, view: View[Any, Any]) -> Verification:
        """Verifies a view once and shows its progress."""
        with workbench(*self._servers) as bench, self._progress(view.name) as report:
            verify = verify_with(bench, view, self._runner, self._cores, report)
            result = verify.run_named(self._generation, deep=self._deep)
            seen = bench.store.registry(view.name).generations.get(result.generation)
            if seen is not None and (remark := folded_by(seen, self._folds.get(view.name, ""))):
                self._warn(remark)
            return result

    def for_ever(self, views: Sequence[View[Any, Any]], share: float) -> Iterator[Verification]:
        """Verifies views in turn for ever, with a share of one core."""
        self.check()
        throttle = Throttle(share)
        self._runner = throttled(run_locally, throttle)
        while True:
            for view in views:
                yield self.run(view)
                throttle.rest()


def generation_meant(app: App, name: str, generation: str, servers: Servers) -> str:
    """The id of the generation of a view that `promote_generation` would make live now.

    Raises:
        Usage: the App has no such view, or it is not folded. ViewNotBuilt: there is no such generation.
    """
    with _promotion(app, name, servers) as promotion:
        return promotion.meant(generation).id


def promote_generation(
    app: App, name: str, generation: str, servers: Servers, *, keep: float, only: str = "", report: ProgressReport
) -> RebuildResult:
    """Makes a generation of a view live; the replaced one is kept for some seconds.

    Args:
        generation: `held`, `kept` (a rollback), `live` or an id. servers: Kafka, Redis and the archive.
        only: the id that it must have, as `generation_meant` gave it before; '' = any.

    Raises:
        Usage: the App has no such view, or it is not folded.
        ConfigurationError, ViewNotBuilt, Fenced, InfrastructureError: as `Promotion.run`.
    """
    with _promotion(app, name, servers, keep, report) as promotion:
        return promotion.run(generation, only)


@contextmanager
def _promotion(
    app: App, name: str, servers: Servers, keep: float = 0.0, report: ProgressReport = lambda progress: None
) -> Iterator[Promotion]:
    view = view_of(app, name)
    if view.streamed:
        raise Usage(f"view {name} is kept by a stream, which continues with its newest rows; leftfold rebuild {name}")
    if not view.folded:
        raise Usage(
            f"view {name} is computed as a whole, and no projector brings an earlier generation up to date; compute it "
            f"again: leftfold rebuild {name}"
        )
    with workbench(*servers) as bench:
        options = RebuildOptions(keep=keep, patience=3.0, fold=folds_of(app).get(name, ""))
        yield Promotion(
            view, bench.store, open_log=bench.open_log, open_reader=bench.open_reader, options=options, report=report
        )


def retried(view: View[Any, Any], keys: Collection[str], servers: Servers) -> tuple[Generation, Retried]:
    """Folds parked rows of the live generation again from the beginning; no key = all that are parked.

    Raises:
        ContractError: one of the keys is not parked. InfrastructureError: a server does not answer.
    """
    check_broker(servers[0])
    with workbench(*servers) as bench:
        live = resolve(bench.store.registry(view.name), view, "live")
        return live, RowRetry(view, bench.store, bench.open_log).run(live, keys)


def verified_as(result: Verification) -> str:
    """The result in a few words; a wrong index entry counts as its row."""
    if not (result.wrong or result.rows):
        return "not settled" if result.unsettled else "rows and indexes equal" if result.deep else "equal"
    more = f" (of {result.seeming:,} that seem so)" if result.seeming > len(result.rows) else ""
    same = "rows not settled" if result.unsettled else "no row differs"
    rows = f"{amount(len(result.rows), 'row')} stored otherwise{more}" if result.rows else same
    checkpoints = f"differs in {amount(len(result.wrong), 'bucket')}" if result.wrong else "checkpoints equal"
    return f"{checkpoints}, {rows}" if result.deep else checkpoints


class ParkedRow(NamedTuple):
    """A parked row with the event that it could not fold; None = the log does not hold that event any more."""

    key: str
    parked: Parked
    event: Mapping[str, Any] | None


class ParkedRows(NamedTuple):
    """Some of the parked rows of a generation, by key, and how many there are in all."""

    rows: Sequence[ParkedRow]
    total: int


def parked_rows(view: View[Any, Any], servers: Servers, begin: int = 0, most: int = 25) -> ParkedRows:
    """Parked rows of the live generation from the `begin`th on, each with its event; none without a live generation.

    Raises:
        InfrastructureError: a server does not answer.
    """
    kafka, redis, _ = servers
    with store_of(redis) as store:
        live = store.registry(view.name).live_of(view.hash)
        parked = describe(view, live, store).parked if live is not None and view.folded else {}
    some = sorted(parked.items())[begin : begin + most]
    return ParkedRows([ParkedRow(key, one, _event_at(kafka, one)) for key, one in some], len(parked))


def _event_at(kafka: str | None, parked: Parked) -> Mapping[str, Any] | None:
    try:
        return event_fields(record_at(kafka_settings(kafka), parked.topic, parked.partition, parked.offset))
    except ContractError:
        return None


def plan_locally(view: View[Any, Any], servers: Servers) -> RebuildPlan:
    """The plan of a rebuild of a view in this process.

    Raises:
        Usage: it belongs into a process of its own: on Spark, or with the stream that keeps the view.
        LogGap: the log does not hold all records. InfrastructureError: a server does not answer.
    """
    command = f"leftfold rebuild {view.name}"
    if view.streamed:
        raise Usage(f"view {view.name} is kept by a stream, which alone can compute it again; type: {command}")
    kafka, redis, archive = servers
    check_broker(kafka)
    (plan,) = Rebuilding(kafka, redis, RebuildOptions(cores=1), archive).plans([view])
    chosen = engine_for_rebuild([plan], "auto", None)
    if chosen.spark:
        raise Usage(f"view {view.name} is rebuilt {chosen}; it takes a process of its own; type: {command}")
    return plan.in_process


def rebuild_locally(
    app: App, view: View[Any, Any], servers: Servers, *, hold: bool, keep: float, report: ProgressReport
) -> RebuildResult:
    """Rebuilds a view in this process.

    Args:
        hold: readers do not see it until it is promoted. keep: seconds for which the replaced generation is kept.

    Raises:
        Usage: as `plan_locally`. Others: as `leftfold rebuild`.
    """
    plan_locally(view, servers)
    kafka, redis, archive = servers
    fold = folds_of(app).get(view.name, "")
    work = Rebuilding(kafka, redis, RebuildOptions(cores=1, keep=keep, hold=hold), archive)
    with work.opened(view, report, fold) as rebuild:
        return rebuild.run(rebuild.plan().in_process)
