"""`leftfold plan`: predicts the cost of rebuilds for any log size and any hardware."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, JsonOption, examples
from leftfold.engine.rebuild.planner import Forecast, Hardware, Workload, forecast
from leftfold.model.app import App
from leftfold.model.view import View
from leftfold.runtime.console import emit, note, say, table
from leftfold.runtime.project import load_app, view_of

__all__ = ["EXAMPLES", "plan"]

EXAMPLES = examples(
    "leftfold plan                                   at a million, a billion and a trillion events",
    "leftfold plan basket_summary --events 1e12 --cores 512 --machines 32 --partitions 512",
    "leftfold plan --events 1e9 --rows 2e6 --cores 64 --brokers 3 --stores 3",
)
_SIZES = (10**6, 10**9, 10**12)
_MOST = 1e18
_COLUMNS = ("view", "events", "tasks", "time", "held up by", "a task", "a machine", "in redis")


def plan(
    names: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views; else all.")] = None,
    events: Annotated[
        list[float] | None, typer.Option("--events", metavar="N", min=1, max=_MOST, help="Such as 1e9.")
    ] = None,
    rows: Annotated[
        float | None, typer.Option("--rows", metavar="N", min=0, max=_MOST, help="Else one per 8 events.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", min=1, help="Of each topic; else as the App has them.")
    ] = None,
    buckets: Annotated[int, typer.Option("--buckets", metavar="N", min=1, help="Of views that are sorted.")] = 16,
    cores: Annotated[int, typer.Option("--cores", metavar="N", min=1, help="Of Spark's, in all.")] = 2,
    machines: Annotated[int, typer.Option("--machines", metavar="N", min=1, help="Of Spark's.")] = 1,
    brokers: Annotated[int, typer.Option("--brokers", metavar="N", min=1)] = 1,
    stores: Annotated[int, typer.Option("--stores", metavar="N", min=1, help="Servers of Redis.")] = 1,
    app: AppOption = "",
    as_json: JsonOption = False,
) -> None:
    """Predict what rebuilds of views would cost: tasks, time, memory, and the bottleneck.

    Nothing is read from any server. The rates were measured with the reference application on a machine of two cores;
    for the cost on an existing log see `leftfold rebuild --plan`.
    """
    whole, on = load_app(app, having=names or ()), Hardware(cores, machines, brokers, stores)
    found = []
    _tell_left_out(whole, names or [])
    for view in _views(whole, names or []):
        for size in map(int, events or _SIZES):
            count = (partitions or whole.partitions) * len(view.categories)
            work = Workload(size, count, view.stream_keyed, buckets, None if rows is None else int(rows))
            found.append((view.name, work, forecast(work, on)))
    _tell(found, on, as_json=as_json)


def _views(app: App, names: list[str]) -> Iterator[View[Any, Any]]:
    for name in names:
        view_of(app, name)
    return (view for view in app.views if view.folded and (not names or view.name in names))


def _tell_left_out(app: App, names: list[str]) -> None:
    """Notes which of the views have no forecast."""
    left = [view for view in app.views if not view.folded and (not names or view.name in names)]
    if computed := [view.name for view in left if not view.streamed]:
        commands = "; ".join(f"leftfold rebuild {name} --plan" for name in computed)
        note(
            f"left out, since Spark computes them as a whole: {', '.join(computed)}; "
            f"what their rebuild reads: {commands}"
        )
    if streamed := [view.name for view in left if view.streamed]:
        note(f"left out, since a stream computes them: {', '.join(streamed)}")


def _tell(found: list[tuple[str, Workload, Forecast]], on: Hardware, *, as_json: bool) -> None:
    if as_json:
        for name, work, cost in found:
            emit({"view": name, **asdict(work), "rows": work.keys, "hardware": asdict(on), **asdict(cost)})
        return
    if not found:
        return
    table([_line(name, work, cost) for name, work, cost in found], _COLUMNS)
    say(f"on {on.cores} cores of {on.machines} machine(s), {on.brokers} broker(s), {on.stores} server(s) of Redis")


def _line(name: str, work: Workload, cost: Forecast) -> dict[str, object]:
    return {
        "view": name,
        "events": f"{work.events:,}",
        "tasks": f"{cost.tasks:,} ({cost.running:,} at once)",
        "time": _lasting(cost.seconds),
        "held up by": cost.limit,
        "a task": _size(cost.task_mb),
        "a machine": _size(cost.machine_mb),
        "in redis": _size(cost.stored_mb),
    }


def _lasting(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _size(megabytes: int) -> str:
    for unit, size in (("PB", 1024**3), ("TB", 1024**2), ("GB", 1024)):
        if megabytes >= size:
            return f"{megabytes / size:.1f} {unit}"
    return f"{megabytes} MB"
