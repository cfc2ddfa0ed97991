"""`leftfold dev`: servers, App and reloading in one terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from leftfold.cli.options import AppsOption, KafkaOption, LogsOption, RedisOption, examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from leftfold.logs import Report

__all__ = ["EXAMPLES", "dev"]

EXAMPLES = examples(
    "leftfold dev",
    "leftfold send AddItem '{...}'     in a second terminal",
    "leftfold dev --app shop.orders:app --app shop.stock:app     Apps that react to each other",
)


def dev(
    app: AppsOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    json_logs: LogsOption = None,
) -> None:
    """Start servers, run the App or several, reload on change.

    Ctrl-C stops everything that this command started. A server of its own that dies is started again. Servers that
    run already are used and left alone. The command needs a project, or --app with the App of this directory.
    """
    from leftfold.cli.handover import handover
    from leftfold.cli.project import find_project
    from leftfold.cli.reloading import Reloading
    from leftfold.cli.stopping import Stopping
    from leftfold.errors import LeftfoldError
    from leftfold.logs import open_report

    project = find_project()
    if not app:
        project.require()
    report, stopping = open_report("dev", as_json=json_logs), Stopping()
    environment = handover(kafka=kafka, redis=redis)
    try:
        with _servers(kafka, redis, report, shown=sys.stderr.isatty() and not json_logs):
            if not stopping.event.is_set():
                logs = {True: ["--json-logs"], False: ["--plain-logs"], None: []}[json_logs]
                arguments = [*logs, *(f"--app={one}" for one in app or ())]
                Reloading(project.root, arguments, environment, stop=stopping.event, report=report).run()
    except LeftfoldError:
        # Ctrl-C at a terminal is for everything that is started there: what it ended has not failed.
        if not stopping.event.is_set():
            raise
    report("stopped", {})
    raise typer.Exit(stopping.code)


def _servers(kafka: str | None, redis: str | None, report: Report, *, shown: bool) -> AbstractContextManager[object]:
    """What is not configured and does not run yet, for as long as this process lives; `shown` = work is overwritten."""
    from contextlib import nullcontext

    from leftfold.cli.embedded import local_settings, needed
    from leftfold.cli.upkeep import kept_up
    from leftfold.connection import ring
    from leftfold.veil import veiled

    need, settings, local = needed(kafka, redis), local_settings(), ring("leftfold.local")
    need.tell()
    if not need.want:
        return nullcontext()
    if local.status(settings.data).keeper is not None:
        # Whoever started them may have wanted one of them only, and one may have died.
        servers = local.up(settings, want=need.want)
        report("servers were there", {"kafka": servers.kafka, "redis": veiled(servers.redis)})
        return nullcontext()
    report("starting servers", {"data": str(settings.data)})
    progress = None if shown else _reported(report)
    servers = local.embedded(settings.data, settings=settings, want=need.want, progress=progress)
    return kept_up(servers, settings.data, report)


def _reported(report: Report) -> Callable[[str], None]:
    """Tells of each piece of work once, as a line of the log."""
    told: set[str] = set()

    def progress(line: str) -> None:
        work = line.partition(" ... ")[0]
        if work not in told:
            told.add(work)
            report(work, {})

    return progress
