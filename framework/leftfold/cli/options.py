"""Command-line options, confirmations and parsers that several commands share."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from leftfold.errors import LeftfoldError
from leftfold.model.keys import NO_ROW
from leftfold.model.view import REFRESH_SECONDS, View
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import note
from leftfold.runtime.project import Usage, find_project
from leftfold.safety import printable, veiled

__all__ = [
    "EVERY",
    "MAX_PARKED",
    "AppOption",
    "AppsOption",
    "ArchiveOption",
    "ByOption",
    "JsonOption",
    "KafkaOption",
    "KeepOption",
    "LogsOption",
    "MasterOption",
    "MaxParkedOption",
    "MetricsOption",
    "PyFilesOption",
    "ReasonOption",
    "RedisOption",
    "ScrapeOption",
    "YesOption",
    "agreed",
    "encoded_key",
    "examples",
    "given_options",
    "note_options",
    "read_key",
    "read_time",
    "seconds",
    "signed",
]


def agreed(question: str, *, yes: bool) -> None:
    """Asks the user to confirm; returns when the answer is yes, or when `yes` is set.

    Raises:
        Usage: standard input is no terminal. typer.Exit: 1, when the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise Usage(f"{question}\nthere is no terminal to ask on; to go on, say --yes. Nothing was changed")
    if not typer.confirm(printable(question), err=True):
        note("nothing was changed")
        raise typer.Exit(1)


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LENGTH = re.compile(r"(?P<number>(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>ms|s|m|h|d|)", re.ASCII)


def seconds(text: str | float) -> float:
    """A length of time in seconds, from `90`, `250ms`, `90s`, `1.5m`, `2h` or `7d`.

    Raises:
        typer.BadParameter: it is in none of these forms.
    """
    found = _LENGTH.fullmatch(str(text).strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no length of time; write 30s, 5m or 1h")
    return float(found["number"]) * _UNITS[found["unit"]]


def read_time(text: str) -> datetime:
    """A time, from ISO 8601 with its zone, or from an age with its unit, such as `30m`, `12h` or `90d`.

    Raises:
        typer.BadParameter: it is neither, or the zone is missing.
    """
    if (age := _LENGTH.fullmatch(text)) and age["unit"]:
        return datetime.fromtimestamp(max(0.0, time.time() - seconds(text)), UTC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-01-01T00:00:00Z, or an age: 12h, 90d") from error
    if found.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write {found.isoformat()}Z for UTC")
    return found


def encoded_key(view: View[Any, Any], text: str) -> str:
    """The typed key, encoded; NO_ROW stays as it is shown where events without a row are parked."""
    return text if text == NO_ROW else view.keys.encode(read_key(view, text))


def read_key(view: View[Any, Any], text: str) -> Any:
    """The typed key; a key of several parts is typed with / between them.

    Raises:
        Usage: it is no key of this view.
    """
    try:
        return view.keys.read(text)
    except ValueError as error:
        raise Usage(f"{text!r} is no key of view {view.name}: {error}") from error


MAX_PARKED = 100
"""Most parked rows of a view; a copy of the engine's constant, which this module does not import."""
EVERY = REFRESH_SECONDS


_COMMAND = re.compile(r"\bleftfold (?!(?:up|down|dev|new)\b)[a-z]")
_VARIABLES = {
    "kafka": "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS",
    "redis": "LEFTFOLD_REDIS_URL",
    "archive": "LEFTFOLD_ARCHIVE_DIR",
}


def note_options(
    text: str, apps: Iterable[str], kafka: str | None = None, redis: str | None = None, archive: str | None = None
) -> None:
    """Prints how the commands in a text reach what was named with options, unless they name it themselves.

    Args:
        apps: values of `--app`; those of the project are found without.
    """
    if not _COMMAND.search(text):
        return
    known = [*_own(), *os.environ.get("LEFTFOLD_APP", "").split()]
    others = [spec for spec in apps if spec and spec not in known]
    named = {"kafka": kafka, "redis": redis, "archive": archive}
    exported = [f"LEFTFOLD_APP={spec}" for spec in others if len(others) == 1]
    exported += [
        f"{_VARIABLES[name]}={shlex.quote(veiled(value))}"
        for name, value in named.items()
        if value and value != os.environ.get(_VARIABLES[name]) and f"--{name} " not in text
    ]
    if exported:
        note(f"for these commands: export {' '.join(exported)}")
    if len(others) > 1:
        note(f"for these commands name the App that each is about: {' or '.join(f'--app {one}' for one in others)}")


def _own() -> tuple[str, ...]:
    try:
        return find_project().apps
    except LeftfoldError:
        return ()


def given_options(context: typer.Context) -> list[str]:
    """The typed options, for the command that continues this one; without --fresh, and REDIS_URL for a login."""
    words: list[str] = []
    for param in context.command.params:
        value = context.params.get(param.name or "")
        typed = param.name and getattr(context.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
        if not typed or param.param_type_name != "option" or param.name == "fresh":
            continue
        if param.name == "redis" and "@" in str(value):
            value = "REDIS_URL"  # a login is printed nowhere: who copies the line puts in their own
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [param.opts[0]] if one is True else [param.opts[0], str(one)]
    return words


_ASKING = frozenset({"run", "dev", "status", "top", "doctor"})
"""Commands that wait for servers which are started beside them, or report a server that does not answer."""


def _reachable(context: typer.Context, address: str | None) -> str | None:
    """The typed address; an error at once where no broker can be reached at it."""
    if address and context.info_name not in _ASKING:
        from leftfold.kafka.reachability import check_reachable

        check_reachable(kafka_settings(address))
    return address


AppOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--app",
        envvar="LEFTFOLD_APP",
        metavar="MODULE:NAME",
        help="The App to use; else `app` under [tool.leftfold] in the nearest pyproject.toml.",
    ),
]
AppsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        envvar="LEFTFOLD_APP",
        metavar="MODULE:NAME",
        help="An App; may be repeated. Else all that `app` under [tool.leftfold] in the nearest pyproject.toml names.",
    ),
]
KafkaOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        help="Brokers; else the environment, else what `leftfold up` started.",
        callback=_reachable,
    ),
]
RedisOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="Redis: redis://host, redis+sentinel://host,host/service or redis+cluster://host,host (rediss for TLS); "
        "else the environment, else what `leftfold up` started.",
    ),
]
MasterOption: TypeAlias = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master; else LEFTFOLD_SPARK_MASTER, or local[*].")
]
KeepOption: TypeAlias = Annotated[
    float,
    typer.Option("--keep", metavar="TIME", parser=seconds, help="How long to keep the replaced generation: 10m, 1h."),
]
MaxParkedOption: TypeAlias = Annotated[
    int, typer.Option("--max-parked", metavar="N", min=0, help="How many rows of a view may be parked before it stops.")
]
PyFilesOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--py-files", metavar="PATH", help="A package or module to send to a cluster; may be repeated."),
]
ArchiveOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        help="The log's archive; else LEFTFOLD_ARCHIVE_DIR, else `archive` under [tool.leftfold] in pyproject.toml.",
    ),
]
ByOption: TypeAlias = Annotated[str, typer.Option("--by", metavar="WHO", help="Who does so; else your login name.")]
ReasonOption: TypeAlias = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with what you do.")]
YesOption: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
MetricsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="LEFTFOLD_METRICS",
        help="Serve /metrics for Prometheus there, such as 127.0.0.1:9464.",
    ),
]
ScrapeOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="LEFTFOLD_METRICS",
        help="Where leftfold run --metrics serves; for p50 and p99.",
    ),
]
LogsOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--json-logs/--plain-logs", help="How to log; else JSON unless standard error is a terminal."),
]


def examples(*lines: str) -> str:
    """The examples at the end of a help text, line breaks kept."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_LONGEST = 2000


def signed(by: str, reason: str) -> str:
    """The name of the operator: the value of --by, or the login name.

    Raises:
        Usage: no reason is given, or the user has no login name.
    """
    if not 0 < len(reason.strip()) <= _LONGEST:
        raise Usage(f"why? say --reason TEXT, in {_LONGEST} characters at most; it is kept with what you do")
    if by:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        raise Usage("who does this? your user has no name here; say --by WHO") from None
