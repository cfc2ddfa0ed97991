"""`leftfold rebuild`: views folded again from the whole log."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import (
    AppOption,
    JsonOption,
    KafkaOption,
    MasterOption,
    PyFilesOption,
    RedisOption,
    examples,
)  # fmt: skip

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.engine.rebuild_result import RebuildResult
    from leftfold.view import View

__all__ = ["EXAMPLES", "Engine", "rebuild"]

EXAMPLES = examples(
    "leftfold rebuild                                    every view of the App, one after another",
    "leftfold rebuild household_spend --keep 3600        and keep what it replaces for an hour",
    "leftfold rebuild --engine local                     without Spark, for small logs",
    "leftfold rebuild --master spark://spark-master:7077 --cores 16",
    "leftfold rebuild --master spark://spark-master:7077 --py-files shop    workers lack the code",
    "leftfold rebuild --plan                             what would be read, and what it would cost",
)


class Engine(StrEnum):
    """Where the fold runs."""

    SPARK = "spark"
    LOCAL = "local"


def rebuild(
    names: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views; else all.")] = None,
    keep: Annotated[
        float, typer.Option("--keep", metavar="SECONDS", min=0, help="How long to keep what is replaced.")
    ] = 600.0,
    engine: Annotated[Engine, typer.Option("--engine", help="Spark, or this process.")] = Engine.SPARK,
    master: MasterOption = None,
    py_files: PyFilesOption = None,
    cores: Annotated[int | None, typer.Option("--cores", metavar="N", min=1, help="Tasks at once.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the plan and do nothing; see `leftfold plan`, too.")
    ] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Go live even if the rows differ.")] = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold views again from the whole log.

    A new generation is built beside the live one, caught up, compared with it and only then shown to readers. Commands
    and reads go on meanwhile. Ctrl-C leaves the live generation as it is. Exit code 3 when the rows differ from those
    of the same code before; they are then not shown.
    """
    from leftfold.cli.project import load_app
    from leftfold.cli.rebuilding import Rebuilding, cores_of

    whole = load_app(app)
    work = Rebuilding(kafka, redis, keep=keep, cores=cores or cores_of(engine, master), anyway=anyway)
    views = _views(whole, names or [])
    if plan:
        _plan(work, views, as_json=as_json)
        return
    code = 0
    with work.engine(engine, master, py_files or ()):
        for view in views:
            result = work.run(view, quiet=as_json)
            _tell(result, as_json=as_json)
            code = max(code, result.exit_code)
    raise typer.Exit(code)


def _views(app: App, names: list[str]) -> list[View[Any, Any]]:
    from leftfold.cli.failures import Usage, unknown

    for name in names:
        if name not in {view.name for view in app.views}:
            raise unknown(f"view in app {app.name} called", name, (view.name for view in app.views))
    if not app.views:
        raise Usage(f"app {app.name} has no views; there is nothing to rebuild")
    return [view for view in app.views if not names or view.name in names]


def _plan(work: Any, views: list[View[Any, Any]], *, as_json: bool) -> None:
    from leftfold.cli.console import emit, say

    for view in views:
        plan = work.plan(view)
        if as_json:
            told = {"events": plan.events, "tasks": len(plan.tasks), "buckets": plan.buckets}
            emit({"view": view.name, **told, "seconds": round(plan.seconds, 1), "memory_mb": plan.memory})
        else:
            say(str(plan))


def _tell(result: RebuildResult, *, as_json: bool) -> None:
    from leftfold.cli.console import emit, say

    if not as_json:
        say(str(result))
        return
    told = {name: getattr(result, name) for name in ("view", "generation", "predecessor", "events", "rows", "kept")}
    checksums = {"checksum": f"{result.checksum:032x}", "old_checksum": f"{result.old_checksum:032x}"}
    rest = {"agreement": result.agreement.value, "why": result.why, "swapped": result.swapped}
    emit({**told, **checksums, **rest, "seconds": result.seconds, "parked": result.parked})
