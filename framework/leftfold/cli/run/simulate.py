"""`leftfold simulate`: runs an App under thousands of simulated schedules and shows the first failure."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import AppOption, JsonOption, examples
from leftfold.engine.progress import Stopwatch
from leftfold.runtime.console import emit, say_lines, shown
from leftfold.runtime.project import Usage, load_app

if TYPE_CHECKING:
    from leftfold.testing.simulation import Report

__all__ = ["EXAMPLES", "simulate"]

EXAMPLES = examples(
    "leftfold simulate                                        the App of this project, 1,000 schedules",
    "leftfold simulate shop.app:app --schedules 10000",
    "leftfold simulate --commands shop.simulation:commands --check shop.simulation:promises",
    "leftfold simulate --new-ids                              clients that repeat commands under new ids",
    "leftfold simulate --schedules 1 --seed 4711              one schedule again, with its trace",
)


def simulate(
    spec: Annotated[str, typer.Argument(metavar="[APP]", help="module:name; else that of --app.")] = "",
    schedules: Annotated[int, typer.Option("--schedules", metavar="N", min=1, help="How many.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", min=0, help="Of the first schedule.")] = 0,
    commands: Annotated[
        str, typer.Option("--commands", metavar="MODULE:FUNCTION", help="Draws what clients send; else by class.")
    ] = "",
    check: Annotated[
        str, typer.Option("--check", metavar="MODULE:FUNCTION", help="Returns the broken promises of the domain.")
    ] = "",
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Of each decider.")] = 2,
    clients: Annotated[int, typer.Option("--clients", metavar="N", min=1, help="When commands are drawn.")] = 2,
    new_ids: Annotated[
        bool, typer.Option("--new-ids", help="Send commands of unknown outcome again under new ids.")
    ] = False,
    app: AppOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run the App on a simulated Kafka and Redis, where a seed decides every order and every fault.

    Its workers, clients, projectors, rebuilds, readers, process managers and reactions are killed and stopped, requests
    lost and delayed, links cut, servers restarted. After each schedule the topics and rows are judged: every answer
    true, every decision there once and whole, every state and row the fold of its events. A schedule that breaks a
    promise is shrunk to the fewest faults and shown with its trace. No server is needed. Exit code 3 when a promise is
    broken.
    """
    from leftfold.testing.simulation import simulate as run

    whole = load_app(spec or app)
    options: dict[str, Any] = {"schedules": schedules, "seed": seed, "workers": workers, "clients": clients}
    options |= {name: _named(spec) for name, spec in (("commands", commands), ("check", check)) if spec}
    with shown("simulate") as report:
        watch = Stopwatch(report)
        watch.begin("schedules", schedules)
        found = run(whole, same_ids=not new_ids, progress=lambda done: watch.tell(done - watch.done), **options)
    _print(found, as_json=as_json)
    if found.failure is not None:
        raise typer.Exit(3)


def _named(spec: str) -> Callable[..., Any]:
    """A function by `module:name`."""
    module, _, name = spec.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Usage(f"{spec!r} names no function: {error}; write it as module:function") from error
    return found


def _print(report: Report, *, as_json: bool) -> None:
    if not as_json:
        say_lines(str(report).split("\n"))
        return
    failure = report.failure
    found = None
    if failure is not None:
        found = {
            "seed": failure.seed,
            "wrong": list(failure.wrong),
            "faults": [str(fault) for fault in failure.faults],
            "trace": [{"at": at, "process": p, "what": what, "details": str(d)} for at, p, what, d in failure.trace],
        }
    emit({"app": report.app, "schedules": report.count, "first_seed": report.first, "failure": found})
