"""The commands by task. Each is imported when it is typed: `--help` and completion need none of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from leftfold.cli.console import say
from leftfold.version import __version__

__all__ = ["COMMANDS", "Entry", "app"]


class Entry(NamedTuple):
    """A command: the module in which a function or a group has its name, and what `leftfold --help` says of it."""

    module: str
    summary: str


COMMANDS: Mapping[str, Mapping[str, Entry]] = {
    "Begin": {
        "new": Entry("leftfold.cli.new", "Write a new project."),
        "dev": Entry("leftfold.cli.dev", "Start servers, run the App, reload it on changes."),
        "up": Entry("leftfold.cli.up", "Start Kafka and Redis on this machine."),
        "down": Entry("leftfold.cli.down", "Stop what `leftfold up` started; data stays."),
    },
    "Run": {
        "run": Entry("leftfold.cli.run", "Run an App, or several, until Ctrl-C."),
        "status": Entry("leftfold.cli.status", "Show servers, workers, processes and views."),
        "doctor": Entry("leftfold.cli.doctor", "Look for what keeps things from working."),
        "check": Entry("leftfold.cli.check", "Compare code, leftfold.lock and topics."),
        "topics": Entry("leftfold.cli.topics", "Look at topics, make them, say who may use them."),
        "simulate": Entry("leftfold.cli.simulate", "Run the App under seeded schedules and faults."),
    },
    "Commands and events": {
        "send": Entry("leftfold.cli.send", "Send one command, or a file of them."),
        "events": Entry("leftfold.cli.events", "Print events as they stand in the log."),
        "dead": Entry("leftfold.cli.dead", "List, send again or discard dead letters."),
        "log": Entry("leftfold.cli.log", "Trace, archive, trim and query the log."),
        "state": Entry("leftfold.cli.state", "Verify or fold again the states of streams."),
    },
    "Views": {
        "get": Entry("leftfold.cli.get", "Print the row of a key."),
        "watch": Entry("leftfold.cli.watch", "Print rows as they change."),
        "rebuild": Entry("leftfold.cli.rebuild", "Fold views again from the whole log."),
        "plan": Entry("leftfold.cli.plan", "Predict what rebuilds would cost."),
        "diff": Entry("leftfold.cli.diff", "Compare two generations of a view."),
        "promote": Entry("leftfold.cli.promote", "Make the generation that was held back live."),
        "rollback": Entry("leftfold.cli.promote", "Make the generation before the live one live again."),
        "drop": Entry("leftfold.cli.drop", "Remove a generation that no reader sees."),
        "verify": Entry("leftfold.cli.verify", "Compare views with what the log folds to."),
        "explain": Entry("leftfold.cli.explain", "Show the events that made a row."),
        "retry": Entry("leftfold.cli.retry", "Fold parked rows again, or run parked reactions again."),
    },
    "Processes and reactions": {
        "timers": Entry("leftfold.cli.timers", "List timers of processes; fire or cancel one."),
        "reactions": Entry("leftfold.cli.reactions", "Begin reactions; list and skip parked events."),
    },
}
_ENTRIES = {name: entry for section in COMMANDS.values() for name, entry in section.items()}


class _Lazy(TyperGroup):
    """Imports the command that is asked for, and no other.

    Typer has copied click into itself, so the types of its arguments depend on its version.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(_ENTRIES)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _ENTRIES and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()])


def _load(name: str) -> Any:
    module = importlib.import_module(_ENTRIES[name].module)
    found: Any = getattr(module, name)
    parent = typer.Typer(rich_markup_mode=None, context_settings=_SETTINGS)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name, epilog=getattr(module, f"{name.upper()}_EXAMPLES", "") or module.EXAMPLES)(found)
    return typer.main.get_group(parent).commands[name]


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    add_completion=True,
    # Rich help would cost a third of a second before every command.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
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
