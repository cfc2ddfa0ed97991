"""Options that several commands share, and how examples are written into their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = [
    "EVERY", "MAX_PARKED", "AppOption", "AppsOption", "ArchiveOption", "JsonOption", "KafkaOption", "LogsOption",
    "MasterOption", "MaxParkedOption", "PyFilesOption", "RedisOption", "examples",
]  # fmt: skip

MAX_PARKED = 100
"""How many rows of a view may be parked; as the engine has it, which this page does not import."""
EVERY = 60.0
"""Seconds between two refreshes of a view that Spark computes as a whole."""


_WAITING = frozenset({"run", "dev"})
"""Commands that wait for servers which start beside them."""


def _reachable(context: typer.Context, address: str | None) -> str | None:
    """What was typed, unless no broker can be there: that is said at once."""
    if address and context.info_name not in _WAITING:
        from leftfold.connection import kafka_settings, ring

        ring("leftfold.kafka.reach").check_reachable(kafka_settings(address))
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
        help="An App to run; may be repeated. Else all that `app` under [tool.leftfold] in the nearest pyproject.toml "
        "names.",
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
MaxParkedOption: TypeAlias = Annotated[
    int,
    typer.Option("--max-parked", metavar="N", min=0, help="How many rows of a view may be parked before it stops."),
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
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
LogsOption: TypeAlias = Annotated[
    bool | None,
    typer.Option("--json-logs/--plain-logs", help="How to log; else JSON unless standard error is a terminal."),
]


def examples(*lines: str) -> str:
    """The end of a help text, kept as it is."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
