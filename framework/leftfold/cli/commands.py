"""The commands, put together. Each lives in a module of its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from leftfold.cli import (
    check,
    dead,
    dev,
    diff,
    doctor,
    down,
    drop,
    events,
    explain,
    get,
    log,
    new,
    plan,
    promote,
    reactions,
    rebuild,
    retry,
    run,
    send,
    simulate,
    state,
    status,
    timers,
    topics,
    up,
    verify,
    watch,
)
from leftfold.cli.console import say
from leftfold.version import __version__

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    # Rich help would cost a third of a second before every command.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 verification mismatch, 4 not caught up in time, 69 unavailable, "
    "75 fenced, 78 configuration, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"leftfold {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", envvar="LEFTFOLD_TRACEBACK", help="Show where an error comes from.")
    ] = False,
) -> None:
    """Event sourcing and CQRS on Kafka, Spark and Redis: state is a left fold over the log.

    A first tour: leftfold new shop, cd shop, leftfold dev; then, in a second terminal, leftfold send, events and get.
    """


_COMMANDS: tuple[tuple[Callable[..., Any], str], ...] = (
    (new.new, new.EXAMPLES),
    (dev.dev, dev.EXAMPLES),
    (up.up, up.EXAMPLES),
    (down.down, down.EXAMPLES),
    (status.status, status.EXAMPLES),
    (run.run, run.EXAMPLES),
    (send.send, send.EXAMPLES),
    (events.events, events.EXAMPLES),
    (get.get, get.EXAMPLES),
    (watch.watch, watch.EXAMPLES),
    (rebuild.rebuild, rebuild.EXAMPLES),
    (diff.diff, diff.EXAMPLES),
    (promote.promote, promote.PROMOTE_EXAMPLES),
    (promote.rollback, promote.ROLLBACK_EXAMPLES),
    (drop.drop, drop.EXAMPLES),
    (verify.verify, verify.EXAMPLES),
    (explain.explain, explain.EXAMPLES),
    (retry.retry, retry.EXAMPLES),
    (check.check, check.EXAMPLES),
    (simulate.simulate, simulate.EXAMPLES),
    (doctor.doctor, doctor.EXAMPLES),
)
for _function, _examples in _COMMANDS:
    app.command(epilog=_examples)(_function)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.add_typer(topics.app, name="topics")
app.add_typer(state.state, name="state")
app.add_typer(log.log, name="log")
app.add_typer(timers.timers, name="timers")
app.add_typer(reactions.reactions, name="reactions")
app.add_typer(dead.dead, name="dead")
