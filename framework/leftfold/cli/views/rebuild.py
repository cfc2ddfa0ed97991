"""`leftfold rebuild`: folds views again from the whole log, or compares a sample of their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from leftfold.cli.options import (
    MAX_PARKED,
    AppOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    KeepOption,
    MasterOption,
    MaxParkedOption,
    PyFilesOption,
    RedisOption,
    examples,
    given_options,
    note_options,
)
from leftfold.cli.views.diff import show_rows
from leftfold.cli.views.faust_rebuild import StreamRebuilt, rebuild_streams
from leftfold.engine.rebuild.planner import EngineChoice, RebuildPlan, joint_plan
from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.verify.verification import Sample
from leftfold.model.app import App
from leftfold.model.computed_views import TableView
from leftfold.model.view import View
from leftfold.runtime.console import amount, emit, note, say, say_lines
from leftfold.runtime.lifecycle import folds_of
from leftfold.runtime.project import Usage, load_app, view_of
from leftfold.runtime.rebuilding import Rebuilding, cores_of, engine_for_rebuild, kept

__all__ = ["EngineOption", "share_of", "views_meant"]


EXAMPLES = examples(
    "leftfold rebuild                                    every view of the App, in one pass over what they read",
    "leftfold rebuild household_spend --keep 3600        and keep the replaced generation for an hour",
    "leftfold rebuild household_spend --hold             build it, hidden from readers; then diff and promote",
    "leftfold rebuild household_spend --as-of b-1@5 --name then    when that basket was at version 5; then: "
    "leftfold get household_spend@then 1234",
    "leftfold rebuild household_spend --as-of 2026-11-01T12:00Z --name noon     what had been appended by then",
    "leftfold rebuild household_spend --sample 1%        compare one row in a hundred; writes nothing",
    "leftfold rebuild --engine spark                     with Spark, however small the log is",
    "leftfold rebuild --master spark://spark-master:7077 --cores 16",
    "leftfold rebuild --master spark://spark-master:7077 --py-files shop    if workers lack the code",
    "leftfold rebuild --archive /backup/log              old events from the archive, the rest from Kafka",
    "leftfold rebuild lately                             a view of a stream, which reads the log once more",
    "leftfold rebuild --plan                             what it would read and cost",
)


class EngineOption(StrEnum):
    """Where a fold runs."""

    SPARK = "spark"
    LOCAL = "local"


class RebuildEngine(StrEnum):
    """Where a rebuild runs; `auto` = where it is expected to finish first."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


def rebuild(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views; else all.")] = None,
    keep: KeepOption = 600.0,
    engine: Annotated[
        RebuildEngine, typer.Option("--engine", help="Spark, this process, or the one expected to finish first.")
    ] = RebuildEngine.AUTO,
    master: MasterOption = None,
    py_files: PyFilesOption = None,
    cores: Annotated[int | None, typer.Option("--cores", metavar="N", min=1, help="Tasks at once.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the plan and do nothing; see also `leftfold plan`.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep new rows from readers until `promote`; replaces those held before.")
    ] = False,
    as_of: Annotated[
        str, typer.Option("--as-of", metavar="PLACE", help="Stop at a position, a time or KEY@VERSION; needs --name.")
    ] = "",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Readers then use VIEW@NAME.")] = "",
    sample: Annotated[
        str, typer.Option("--sample", metavar="SHARE", help="Only compare a share of the rows, such as 1%.")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again, not where an earlier one ended.")] = False,
    max_parked: MaxParkedOption = MAX_PARKED,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Go live even if the rows differ; with --as-of also where the view is empty."),
    ] = False,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold views again from the whole log, or compute them again.

    A new generation is built beside the live one, caught up, compared with it and only then shown to readers. A query
    view is computed up to the end that the log has when the rebuild begins. A view that a stream keeps is rebuilt by
    that stream, when it is named. Commands and reads continue meanwhile. Ctrl-C leaves the live generation as it is;
    the next rebuild of the same code continues where one was interrupted. Exit code 3 when the rows differ from those
    of the same code before; they are then not shown. With --sample exit code 3 when a row would change.

    A rebuild runs in this process unless Spark, with its start, is expected to finish earlier, a view is computed by
    Spark, or a master is named.
    """
    _check(as_of, name, hold=hold, sample=sample)
    whole = load_app(app, having=names or ())
    cores_at_once = cores or cores_of("spark" if engine == "auto" else engine, master)
    options = RebuildOptions(
        cores=cores_at_once, keep=keep, max_parked=max_parked, swap_anyway=anyway, hold=hold, pin=name, fresh=fresh
    )
    work = Rebuilding(kafka, redis, options, archive, given=given_options(context))
    views = views_meant(whole, names or [])
    if streamed := [view for view in views if view.streamed]:
        _check_streamed(names or [], plan=plan or hold or bool(as_of or sample), views=len(views) > len(streamed))
        rebuilt = rebuild_streams(whole, streamed, kafka, redis, keep=keep, anyway=anyway)
        raise typer.Exit(_tell_streamed(rebuilt, as_json=as_json))
    _check_folded(views, wanted=hold or bool(sample))
    share = share_of(sample, "--sample", "the rows") if sample else 0.0
    groups = _groups(views, alone=bool(as_of or sample))
    planned = [work.plans(group, as_of, anyway=anyway) for group in groups]
    chosen = engine_for_rebuild([one for plans in planned for one in plans], engine, master)
    if not chosen.spark:
        work.options = replace(options, cores=cores or 1)
        planned = [[one.in_process for one in plans] for plans in planned]
    if plan:
        # Only Spark knows how it would keep a view, and it takes seconds to start.
        asked = engine == "spark" and any(not view.folded for view in views)
        with work.engine("spark" if asked else "local", master):
            _plan(work, groups, planned, chosen, (kafka, redis) if asked else None, as_json=as_json)
        return
    if engine == "auto" and not as_json:
        note(str(chosen))
    codes, folds = [0], folds_of(whole)
    with work.engine("spark" if chosen.spark else "local", master, py_files or ()):
        for group in groups:
            fold = folds.get(group[0].name, "")
            if sample:
                codes.append(tell_sample(work.sampled(group[0], share, fold), as_json=as_json))
                continue
            if len(group) > 1:
                results = work.run_together(group, folds=folds, quiet=as_json)
            else:
                results = [work.run(group[0], fold=fold, quiet=as_json)]
            for result in results:
                _tell(result, as_json=as_json)
                if not as_json:
                    note_options(str(result), [app], kafka, redis, archive)
                codes.append(result.exit_code)
    raise typer.Exit(max(codes))


def _check(as_of: str, name: str, *, hold: bool, sample: str) -> None:
    if bool(as_of) is not bool(name):
        raise Usage("--as-of and --name go together: leftfold rebuild VIEW --as-of KEY@5 --name then")
    if name and not (name.isascii() and name.isidentifier() and name not in ("live", "held", "kept")):
        raise Usage(f"--name {name!r}: a name is letters of ASCII, digits and _, and not live, held or kept")
    if sum((bool(as_of), hold, bool(sample))) > 1:
        raise Usage("--as-of, --hold and --sample are three different things; choose one")


def _check_folded(views: list[View[Any, Any]], *, wanted: bool) -> None:
    for view in views if wanted else ():
        if not view.folded:
            raise Usage(f"view {view.name} is computed as a whole; --hold and --sample are for views that are folded")


def _groups(views: list[View[Any, Any]], *, alone: bool) -> list[list[View[Any, Any]]]:
    """Views grouped by the topics that they read; each group is rebuilt in one pass."""
    if alone:
        return [[view] for view in views]
    groups: dict[frozenset[str], list[View[Any, Any]]] = {}
    for view in views:
        if view.folded:
            groups.setdefault(frozenset(view.categories), []).append(view)
    return [*groups.values(), *([view] for view in views if not view.folded)]


def views_meant(app: App, names: list[str]) -> list[View[Any, Any]]:
    """The App's views of these names; all folded and query views when no name is given."""
    for name in names:
        view_of(app, name)
    if not app.views:
        raise Usage(f"app {app.name} has no views")
    return [view for view in app.views if (not names and not view.streamed) or view.name in names]


def _check_streamed(names: list[str], *, plan: bool, views: bool) -> None:
    if plan or views:
        raise Usage(
            f"{' '.join(names)}: a view that a stream keeps is rebuilt by that stream; rebuild it without other "
            f"views, and without --plan, --hold, --as-of and --sample"
        )


def _tell_streamed(results: Iterable[StreamRebuilt], *, as_json: bool) -> int:
    code = 0
    for result in results:
        emit(result._asdict()) if as_json else say_lines(str(result).split("\n"))
        code = max(code, 0 if result.swapped else 3)
    return code


def _plan(
    work: Any,
    groups: list[list[View[Any, Any]]],
    planned: list[list[RebuildPlan]],
    chosen: EngineChoice,
    servers: tuple[str | None, str | None] | None,
    *,
    as_json: bool,
) -> None:
    """Prints plans; with servers, and Spark, also how Spark would keep the query views."""
    for views, plans in zip(groups, planned, strict=True):
        if not as_json:
            say_lines(joint_plan(plans).split("\n"))
        for view, plan in zip(views, plans, strict=True):
            how = None
            if isinstance(view, TableView) and servers is not None:
                how = kept(view, work.refreshed(view), *servers)
            if as_json:
                fields: dict[str, Any] = {"events": plan.events, "tasks": len(plan.tasks), "buckets": plan.buckets}
                fields |= {} if how is None else {"incremental": how.incremental, "why": how.why}
                fields |= {"seconds": round(plan.seconds, 1), "memory_mb": plan.memory}
                emit({"view": view.name, **fields, "engine": "spark" if chosen.spark else "local"})
            elif how is not None:
                say(f"  kept     {how}")
            elif isinstance(view, TableView):
                say(f"  kept     as Spark finds: leftfold rebuild {view.name} --plan --engine spark")
    if not as_json:
        say(str(chosen))


def _tell(result: RebuildResult, *, as_json: bool) -> None:
    if not as_json:
        say_lines(str(result).split("\n"))
        return
    fields = {name: getattr(result, name) for name in ("view", "generation", "predecessor", "events", "rows", "kept")}
    checksums = {"checksum": f"{result.checksum:032x}", "old_checksum": f"{result.old_checksum:032x}"}
    rest = {"agreement": result.agreement.value, "why": result.why, "swapped": result.swapped, "held": result.held}
    emit({**fields, **checksums, **rest, "seconds": result.seconds, "parked": result.parked})


def share_of(text: str, option: str, whole: str) -> float:
    """A share as the user types it: `1%` or `0.01`.

    Args:
        option: the option that it was typed for. whole: what it is a share of.

    Raises:
        Usage: it is no number, or not above 0 and at most 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise Usage(f"{option} {text!r} is no share of {whole}; it is above 0 and at most 100%, such as 1% or 0.01")
    return share


def tell_sample(sample: Sample, *, as_json: bool) -> int:
    """Prints the rows of a sample that differ; returns the exit code: 3 when a row does."""
    code = 3 if sample.differences or sample.newly else 0
    if as_json:
        emit({**sample.__dict__, "differences": [d.__dict__ for d in sample.differences]})
        return code
    verdict = f"{amount(len(sample.differences), 'row')} would change" if code else "none would change"
    if not (code or sample.rows):
        verdict = "no row is among these keys, so nothing is known; take a larger share"
    more = f" (of {sample.differing:,} that seem to)" if sample.differing > len(sample.differences) > 0 else ""
    folded = f"{amount(sample.rows, 'row')}, {sample.share:.3%} of the keys, in {sample.seconds:.1f} s"
    say(f"{sample.view}: {folded}: {verdict}{more}")
    show_rows(sample.differences, "live", "rebuilt")
    for key, why in list(sample.newly.items())[:5]:
        say(f"  would park {key}: {why}")
    return code
