"""`leftfold timers`: what processes wait for, and timers fired or cancelled by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.durations import seconds
from leftfold.cli.options import AppOption, JsonOption, KafkaOption, examples

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.process import Process

__all__ = ["timers"]

timers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at timers of processes; fire or cancel.")

_Process = Annotated[str, typer.Argument(metavar="PROCESS", help="The process's name.")]
_Key = Annotated[str, typer.Argument(metavar="KEY", help="The business key of the instance.")]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The timer's name.")]
_Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the order.")]
_By = Annotated[str, typer.Option("--by", metavar="WHO", help="Who orders it; else your login name.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", metavar="TIME", parser=seconds, help="How long to wait for a worker: 30s, 2m.")
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_WAIT = 30.0


@timers.command(
    "list",
    epilog=examples(
        "leftfold timers list                          of every process, the next one first",
        "leftfold timers list checkout --key o-1",
        "leftfold timers list checkout --json | jq 'select(.overdue)'",
    ),
)
def list_(
    name: Annotated[str, typer.Argument(metavar="[PROCESS]", help="The process's name; else all.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="One instance.")] = "",
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List timers, when each is due, what it sends.

    They go by the time of the log: that of the slowest partition of the events that the process listens to, as its
    routers tell it. A timer of which that time has come, and which is still there, is overdue.
    """
    from leftfold.cli.console import emit, note, table
    from leftfold.cli.hints import for_app
    from leftfold.cli.project import load_app, load_apps
    from leftfold.cli.timerline import row_of, shown, told_of
    from leftfold.cli.timing import TimerWork

    apps = [load_app(app, having=[name])] if name else [*load_apps([app]).values()]
    if not any(one.processes for one in apps):
        note(f"app {', '.join(one.name for one in apps)} has no processes, and so no timers")
    for whole, process in [(one, process) for one in apps for process in _meant(one, name)]:
        with TimerWork(whole, process, kafka, key) as work:
            told, workers = work.told_time(), work.workers()
            rows = [row_of(process.name, timer, told) for timer in work.table.timers(key)]
        rows.sort(key=lambda row: (row["due"], row["key"], row["timer"]))
        if as_json:
            for row in rows:
                emit(row)
            continue
        note(for_app(told_of(process.name, len(rows), told, workers), app))
        table([shown(row) for row in rows], ("process", "key", "timer", "due", "left", "sends"))


def _meant(app: App, name: str) -> Sequence[Process[Any, Any, Any]]:
    from leftfold.cli.timing import process_of

    return [process_of(app, name)] if name else app.processes


@timers.command(
    epilog=examples(
        'leftfold timers fire checkout o-1 late --reason "the customer will not pay"',
        'leftfold timers fire checkout o-1 late --reason "ticket 4711" --by anna --yes --json',
    )
)
def fire(
    process: _Process,
    key: _Key,
    name: _Name,
    reason: _Reason,
    by: _By = "",
    timeout: _Timeout = _WAIT,
    yes: _Yes = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the command of a timer now. Asks first.

    The worker takes the order in its transaction, as any input. It counts once, for the timer as it was set when the
    order was given: typed twice, or while the timer fires by itself, the second does nothing; one that was set anew is
    left alone. Exit code 4 when no worker took it in time: it stays in the log, and the next one does.
    """
    from leftfold.cli.ordering import Wanted, give
    from leftfold.engine.timer_order import Action

    give(Wanted(Action.FIRE, process, key, name, reason, by, timeout, yes), app, kafka, as_json=as_json)


@timers.command(
    epilog=examples(
        'leftfold timers cancel checkout o-1 late --reason "paid in cash"',
        'leftfold timers cancel checkout o-1 late --reason "ticket 4711" --by anna --timeout 2m',
    )
)
def cancel(
    process: _Process,
    key: _Key,
    name: _Name,
    reason: _Reason,
    by: _By = "",
    timeout: _Timeout = _WAIT,
    yes: _Yes = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a timer. Asks first.

    The worker takes the order in its transaction, as any input: if the timer fired before, nothing happens; one that
    was set anew is left alone. Exit code 4 when no worker took it in time: it stays in the log, and the next one does.
    """
    from leftfold.cli.ordering import Wanted, give
    from leftfold.engine.timer_order import Action

    give(Wanted(Action.CANCEL, process, key, name, reason, by, timeout, yes), app, kafka, as_json=as_json)
