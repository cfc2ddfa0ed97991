"""The command line: the table of commands, and the entry point that maps errors to messages and exit codes."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from leftfold.cli.options import note_options
from leftfold.errors import ConfigurationError, LeftfoldError, StaleViewError, is_interruption
from leftfold.runtime.connect import missing_extra, wrong_settings
from leftfold.runtime.console import note, note_lines, say, styled
from leftfold.runtime.project import INTERRUPTED
from leftfold.safety import veiled
from leftfold.version import __version__

__all__ = ["COMMANDS", "app", "main", "run", "tell", "value_in"]


class CommandEntry(NamedTuple):
    """A command: the module with a function or group of the same name, and its summary in `leftfold --help`."""

    module: str
    summary: str


COMMANDS: Mapping[str, Mapping[str, CommandEntry]] = {
    "Begin": {
        "new": CommandEntry("leftfold.cli.run.setup", "Write a new project."),
        "dev": CommandEntry("leftfold.cli.run.dev", "Start servers, run the App, reload it on changes."),
        "up": CommandEntry("leftfold.cli.run.dev", "Start Kafka and Redis on this machine."),
        "down": CommandEntry("leftfold.cli.run.dev", "Stop what `leftfold up` started; data stays."),
    },
    "Run": {
        "run": CommandEntry("leftfold.cli.run.run", "Run an App, or several, until Ctrl-C."),
        "serve": CommandEntry("leftfold.cli.run.serve", "Answer commands and reads over HTTP."),
        "console": CommandEntry("leftfold.cli.run.serve", "Show Apps, their log and views in a browser."),
        "status": CommandEntry("leftfold.cli.health.status", "Show servers, workers, processes and views."),
        "top": CommandEntry("leftfold.cli.health.top", "Watch rates, lag and what needs you."),
        "doctor": CommandEntry("leftfold.cli.health.doctor", "Check for what keeps services from working."),
        "check": CommandEntry("leftfold.cli.run.check", "Compare code, leftfold.lock and topics."),
        "topics": CommandEntry("leftfold.cli.run.setup", "Look at topics, make them, say who may use them."),
        "simulate": CommandEntry("leftfold.cli.run.simulate", "Run the App under seeded schedules and faults."),
    },
    "Commands and events": {
        "send": CommandEntry("leftfold.cli.data.send", "Send one command, or a file of them."),
        "events": CommandEntry("leftfold.cli.data.events", "Print events as they stand in the log."),
        "dead": CommandEntry("leftfold.cli.log.dead", "List, send again or discard dead letters."),
        "log": CommandEntry("leftfold.cli.log.group", "Trace, archive, trim and query the log."),
        "state": CommandEntry("leftfold.cli.log.state", "Verify or fold again the states of streams."),
    },
    "Views": {
        "get": CommandEntry("leftfold.cli.data.get", "Print the row of a key."),
        "watch": CommandEntry("leftfold.cli.data.get", "Print rows as they change."),
        "rebuild": CommandEntry("leftfold.cli.views.rebuild", "Fold views again from the whole log."),
        "plan": CommandEntry("leftfold.cli.views.plan", "Predict what rebuilds would cost."),
        "diff": CommandEntry("leftfold.cli.views.diff", "Compare two generations of a view."),
        "promote": CommandEntry("leftfold.cli.views.promote", "Make the generation that was held back live."),
        "rollback": CommandEntry("leftfold.cli.views.promote", "Make the generation before the live one live again."),
        "drop": CommandEntry("leftfold.cli.views.drop", "Remove a generation that no reader sees."),
        "verify": CommandEntry("leftfold.cli.views.verify", "Compare views with what the log folds to."),
        "explain": CommandEntry("leftfold.cli.views.explain", "Show the events that made a row."),
        "retry": CommandEntry("leftfold.cli.views.retry", "Fold parked rows again, or run parked reactions again."),
    },
    "Processes and reactions": {
        "timers": CommandEntry("leftfold.cli.processes", "List timers of processes; fire or cancel one."),
        "reactions": CommandEntry("leftfold.cli.processes", "Begin reactions; list parked events."),
    },
}
_ENTRIES = {name: entry for section in COMMANDS.values() for name, entry in section.items()}


class _Lazy(TyperGroup):
    """A command group that imports only the requested command.

    Typer contains a copy of click, so the argument types depend on Typer's version and are `Any` here.
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
    # Importing rich for help would delay every command by a third of a second.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
    epilog="Exit codes: 0 done, 1 no, 2 usage, 3 differs or incomplete, 4 not in time, 69 a server is missing, 75 try "
    "again, 78 configuration, 130 Ctrl-C, 141 closed pipe.",
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


TRACEBACK = "LEFTFOLD_TRACEBACK"


def main() -> None:
    """Runs the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code; docs/settings.md lists the codes."""
    whole = "--traceback" in arguments or os.environ.get(TRACEBACK, "") not in ("", "0")
    # Only `run` and `dev` show the adapters' log messages, and set up logging; elsewhere errors are raised.
    logging.getLogger("leftfold").addHandler(logging.NullHandler())
    try:
        command = typer.main.get_command(app)
        code = command.main(args=list(arguments), prog_name="leftfold", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _closed_output()
    except SystemExit as ended:  # Typer ends with 1 when what it prints is read no further
        if isinstance(ended.__context__, BrokenPipeError):
            return _closed_output()
        raise
    except Exception as error:  # noqa: BLE001  # every error is printed as one message
        if is_interruption(error) and not isinstance(error, LeftfoldError):
            return INTERRUPTED
        return tell(_of_configuration(error) or error, whole=whole, arguments=arguments)
    return int(code or 0)


_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def _of_configuration(error: Exception) -> ConfigurationError | None:
    """The error for a missing extra, a file that may not be used, or wrong settings from the environment."""
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    if isinstance(error, FileNotFoundError) and "temporary directory" in (error.strerror or ""):  # of `tempfile`
        return ConfigurationError(f"{error.strerror}; set TMPDIR to a directory that this user may write")
    if isinstance(error, OSError) and error.filename and error.errno in _NOT_ALLOWED:
        step = "let this user write there, or name another directory (XDG_CACHE_HOME is that of caches)"
        return ConfigurationError(f"{error.filename}: {error.strerror}; {step}")
    if isinstance(error, ValidationError) and error.title.endswith("Settings"):
        return wrong_settings(error, error.title)
    if isinstance(error, ValueError):
        from pydantic_settings import SettingsError  # importing it takes long, and few errors need it

        if isinstance(error, SettingsError):
            return wrong_settings(ValueError(f"{error}; lists and mappings are written as JSON"), "the environment")
    return None


def _closed_output() -> int:
    """Handles a closed standard output, as after `| head`; Python must not raise the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def value_in(arguments: Sequence[str], option: str) -> str:
    """The value of an option among the arguments, '' when it is not given."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return ""


_NOT_CAUGHT_UP = 4


def tell(error: Exception, *, whole: bool = False, arguments: Sequence[str] = ()) -> int:
    """Prints an error on standard error and returns its exit code.

    Args:
        whole: also print the traceback. arguments: what was typed; the commands in the message need some options of it.
    """
    if whole:
        note_lines("".join(traceback.format_exception(error)).rstrip("\n").split("\n"))
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, LeftfoldError):
        message = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
        _say(message)
        app, *servers = (value_in(arguments, option) for option in ("--app", "--kafka", "--redis", "--archive"))
        note_options(message, [app], *servers)
        return _NOT_CAUGHT_UP if isinstance(error, StaleViewError) else error.exit_code
    _say(f"{type(error).__name__}: {veiled(str(error))}{_where(error)}")
    if not whole:
        note("this was not foreseen; to see where it comes from, set LEFTFOLD_TRACEBACK=1")
    return 1


def _usage(error: typer.TyperException) -> int:
    if error.format_message().startswith("Usage:"):
        note_lines(error.format_message().split("\n"))
        return error.exit_code
    _say(error.format_message())
    context = getattr(error, "ctx", None)
    if context is not None:
        note_lines([*context.command.get_usage(context).split("\n"), f"help: {context.command_path} --help"])
    return error.exit_code


def _say(message: str) -> None:
    """Prints an error; further lines are indented, so that quoted text cannot look like another message."""
    sys.stdout.flush()
    first, *others = message.split("\n")
    note_lines([(styled("error:", fg="red", bold=True), f" {first}"), *(f"  {other}" for other in others)])


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
