"""One part of `leftfold run`: a worker, router or reaction, agents, the tail, Spark. It ends with its parent."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from leftfold.cli.archives import archive_of
from leftfold.cli.folds import folds_of
from leftfold.cli.handover import LOGS
from leftfold.cli.options import EVERY, MAX_PARKED
from leftfold.cli.project import load_app
from leftfold.cli.stopping import setter
from leftfold.connection import kafka_settings, redis_settings
from leftfold.errors import Fenced, LeftfoldError
from leftfold.garbage import tuned_gc
from leftfold.logs import Report, open_report

__all__ = ["end_with_parent", "main"]

_LEAVE_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Runs the part and returns its exit code."""
    options = _parser().parse_args(arguments)
    stop = threading.Event()
    report = open_report(options.name, as_json=LOGS[options.logs], leaving=stop.is_set)
    set_stop = setter(stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: set_stop())
    end_with_parent(stop)
    try:
        _serve(options, stop, report)
    except LeftfoldError as error:
        report("failed", {"why": str(error)})
        return error.exit_code
    except Exception:  # noqa: BLE001  # logged whole; the supervisor starts another
        report("failed", {"exc_info": True})
        return 1
    return 0


def end_with_parent(stop: threading.Event) -> None:
    """Sets `stop` when the parent is gone and its end of our standard input closes; ends hard if that takes long."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        stop.set()
        threading.Event().wait(_LEAVE_SECONDS)
        os._exit(Fenced.exit_code)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _serve(options: argparse.Namespace, stop: threading.Event, report: Report) -> None:
    app = load_app(options.app)
    kafka, archive = kafka_settings(), "" if options.no_archive else archive_of(None)
    told: dict[str, Any]
    if options.kind == "decider":
        from leftfold.cli.deciding import decide

        tuned_gc()
        decide(app, options.names[0], kafka, stop, report, archive=archive)
    elif options.kind == "router":
        from leftfold.cli.routing import route_events

        tuned_gc()
        route_events(app, options.names[0], kafka, stop, report)
    elif options.kind == "reaction":
        from leftfold.cli.acting import act

        act(app, options.names[0], kafka, stop, report)
    elif options.kind == "agents":
        from leftfold.cli.agents import run_agents

        run_agents(app, options.names[0], kafka, stop, report)
    elif options.kind == "stream":
        from leftfold.cli.streaming import stream

        views = [app.view(name) for name in options.names]
        told = {"trigger": options.trigger, "max_parked": options.max_parked, "folds": folds_of(app)}
        stream(views, kafka, redis_settings(), stop, report, archive=archive, options=told)
    elif options.kind == "queries":
        from leftfold.cli.refreshing import refresh

        refresh([app.view(name) for name in options.names], options.every, stop, report, archive=archive)
    else:
        from leftfold.cli.following import follow

        tuned_gc()
        # The supervisor's process, not this one: who is started in its place is the same member.
        member = f"{socket.gethostname()}:{os.getppid()}:{options.name}"
        views = [app.view(name) for name in options.names]
        told = {"member": member, "folds": folds_of(app), "max_parked": options.max_parked}
        told["takes_back"] = options.takes_back
        follow(views, kafka, redis_settings(), stop, report, archive=archive, options=told)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leftfold.cli.part", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--app", default="")
    parser.add_argument("--logs", choices=sorted(LOGS), default="auto")
    parser.add_argument("--trigger", type=float, default=0.0)
    parser.add_argument("--every", type=float, default=EVERY)
    parser.add_argument("--max-parked", type=int, default=MAX_PARKED)
    parser.add_argument("--no-archive", action="store_true")
    parser.add_argument("--takes-back", action="store_true")
    parser.add_argument("kind", choices=("decider", "router", "reaction", "agents", "tail", "stream", "queries"))
    parser.add_argument("names", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
