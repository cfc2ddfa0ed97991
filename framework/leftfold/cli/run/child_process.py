"""One child process of `leftfold run`: a worker, router, reaction, projector or Spark job. It ends with its parent."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from leftfold.cli.options import EVERY, MAX_PARKED
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.errors import Fenced, LeftfoldError
from leftfold.ports.protocols import Report
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.lifecycle import folds_of, setter
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import archive_of, load_app
from leftfold.runtime.telemetry_export import collected

__all__ = ["end_with_parent", "handover", "logs_of", "spark_handover"]


LOGS: Mapping[str, bool | None] = {"auto": None, "json": True, "plain": False}
"""Formats of the log, and the value of `as_json` in `open_report` for each."""


def handover(*, kafka: str | None, redis: str | None, archive: str | None = None) -> dict[str, str]:
    """Environment variables for a child process; an option not given stays unset, and the child looks it up."""
    given = {"LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": kafka, "LEFTFOLD_REDIS_URL": redis, "LEFTFOLD_ARCHIVE_DIR": archive}
    return {name: value for name, value in given.items() if value}


def spark_handover(master: str | None, py_files: Sequence[Path]) -> dict[str, str]:
    """Environment variables for a child process that works with Spark, as in `handover`."""
    given = {"LEFTFOLD_SPARK_MASTER": master}
    if py_files:
        given["LEFTFOLD_SPARK_PY_FILES"] = json.dumps([str(path.resolve()) for path in py_files])
    return {name: value for name, value in given.items() if value}


def logs_of(json_logs: bool | None) -> str:
    """The name of a log format."""
    return next(name for name, value in LOGS.items() if value is json_logs)


_LEAVE_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Runs the part that the arguments name, and returns its exit code."""
    options = _parser().parse_args(arguments)
    stop = threading.Event()
    report = open_report(options.name, as_json=LOGS[options.logs], leaving=stop.is_set)
    set_stop = setter(stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: set_stop())
    end_with_parent(stop.set)
    try:
        with collected("leftfold", options.name):
            _serve(options, stop, report)
    except LeftfoldError as error:
        report("failed", {"why": str(error)})
        return error.exit_code
    except Exception:  # noqa: BLE001  # logged whole; the supervisor starts another
        report("failed", {"exc_info": True})
        return 1
    return 0


def end_with_parent(stop: Callable[[], object]) -> None:
    """Calls `stop` when the parent has ended, which closes standard input; exits hard if stopping then takes long."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop()
        threading.Event().wait(_LEAVE_SECONDS)
        os._exit(Fenced.exit_code)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _serve(options: argparse.Namespace, stop: threading.Event, report: Report) -> None:
    app = load_app(options.app)
    kafka, archive = kafka_settings(), "" if options.no_archive else archive_of(None)
    settings: dict[str, Any]
    if options.kind == "decider":
        from leftfold.runtime.workers.processors import decide

        tuned_gc()
        decide(app, options.names[0], kafka, stop, report, archive=archive)
    elif options.kind == "router":
        from leftfold.runtime.workers.processors import route_events

        tuned_gc()
        route_events(app, options.names[0], kafka, stop, report)
    elif options.kind == "reaction":
        from leftfold.runtime.workers.processors import run_reaction

        run_reaction(app, options.names[0], kafka, stop, report, archive=archive)
    elif options.kind == "agents":
        from leftfold.runtime.workers.view_workers import run_agents

        run_agents(app, options.names[0], kafka, stop, report)
    elif options.kind == "stream":
        from leftfold.runtime.workers.view_workers import stream

        views = [app.view(name) for name in options.names]
        settings = {"trigger": options.trigger, "max_parked": options.max_parked, "folds": folds_of(app)}
        stream(views, kafka, redis_settings(), stop, report, archive=archive, options=settings)
    elif options.kind == "queries":
        from leftfold.runtime.workers.query_workers import refresh

        refresh([app.view(name) for name in options.names], options.every, stop, report, archive=archive)
    else:
        from leftfold.runtime.workers.view_workers import follow

        tuned_gc()
        # The id of the supervisor's process, not of this one: a child that replaces this one is the same member.
        member = f"{socket.gethostname()}:{os.getppid()}:{options.name}"
        views = [app.view(name) for name in options.names]
        settings = {"member": member, "folds": folds_of(app), "max_parked": options.max_parked}
        settings["takes_back"] = options.takes_back
        follow(views, kafka, redis_settings(), stop, report, archive=archive, options=settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leftfold.cli.run.child_process", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--app", default="")
    parser.add_argument("--logs", choices=sorted(LOGS), default="auto")
    parser.add_argument("--trigger", type=float, default=0.0)
    parser.add_argument("--every", type=float, default=EVERY)
    parser.add_argument("--max-parked", type=int, default=MAX_PARKED)
    parser.add_argument("--no-archive", action="store_true")
    parser.add_argument("--takes-back", action="store_true")
    parser.add_argument("kind", choices=("decider", "router", "reaction", "agents", "projector", "stream", "queries"))
    parser.add_argument("names", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
