"""Worker processes of deciders, process managers, reactions and routers; they reconnect when servers fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.reactions.runner import ReactionRunner
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.app import App
from leftfold.ports.protocols import Report
from leftfold.runtime.connect import open_archive
from leftfold.runtime.lifecycle import Outage
from leftfold.runtime.servers import skipped_letters

__all__ = ["decide", "route_events", "run_reaction"]


def run_reaction(
    app: App, name: str, settings: KafkaSettings, stop: threading.Event, report: Report, *, archive: str = ""
) -> None:
    """Runs the consumer of a reaction until `stop` is set; reconnects when the broker fails.

    Raises:
        Fenced: this process must end and be restarted. ContractError: an event has a newer version than this code.
    """
    trouble, past = Outage(report, stop), open_archive(archive)

    def work() -> None:
        started = trouble.ended_by("reacting")
        runner = ReactionRunner(app, name, settings, stop=stop, report=started, open_archive=past)
        runner.run(trouble.report_cause)

    trouble.reconnecting(work)


def decide(
    app: App, category: str, settings: KafkaSettings, stop: threading.Event, report: Report, *, archive: str = ""
) -> None:
    """Runs the worker that decides a category's commands until `stop` is set; reconnects when the broker fails.

    Raises:
        Fenced: this process must end and be restarted. ConfigurationError: the error persists after a restart.
    """
    trouble, past = Outage(report, stop), open_archive(archive)

    def work() -> None:
        serving = False

        def forward(what: str, details: Mapping[str, Any]) -> None:
            nonlocal serving
            if what == "serving":
                serving = True
                trouble.report_cause("")
            if what != "left" or serving:  # before "serving", the cause is reported once by `trouble`
                report(what, details)

        with closing(KafkaClientSupplier(settings, archive=past)) as supplier:
            Worker(app, category, supplier, stop=stop, report=forward).run()

    trouble.reconnecting(work)


def route_events(app: App, process: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Runs a router: it copies events to a process's command topic until `stop` is set.

    Raises:
        Fenced: this process must end and be restarted. ContractError: an event cannot be routed; routers skip no event
            by themselves.
    """
    trouble, skipped = Outage(report, stop), partial(skipped_letters, settings, process)

    def work() -> None:
        router = ProcessRouter(app, process, settings, stop=stop, report=trouble.ended_by("routing"), skipped=skipped)
        router.run(trouble.report_cause)

    trouble.reconnecting(work)
