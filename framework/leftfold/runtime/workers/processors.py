"""Worker processes of deciders, process managers, reactions and routers; they reconnect when servers fail."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from leftfold.engine.processing.process_wire import MAX_BYTES
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.reactions.runner import ReactionRunner
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.runtime.connect import open_archive
from leftfold.runtime.lifecycle import Outage
from leftfold.runtime.logging import Report
from leftfold.runtime.toolbox import skipped_letters

__all__ = ["decide", "route_events", "run_reaction"]


def run_reaction(app: App, name: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Runs the consumer of a reaction until `stop` is set; reconnects when the broker fails.

    Raises:
        Fenced: this process must end and be restarted. ContractError: an event has a newer version than this code.
    """
    trouble = Outage(report, stop)

    def forward(what: str, details: Mapping[str, Any]) -> None:
        if what == "reacting":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        try:
            ReactionRunner(app, name, settings, stop=stop, report=forward).run(trouble.told)
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)


def decide(
    app: App, category: str, settings: KafkaSettings, stop: threading.Event, report: Report, *, archive: str = ""
) -> None:
    """Runs the worker that decides a category's commands until `stop` is set; reconnects when the broker fails.

    Args:
        archive: directory or URI of the archive, for trimmed events; '' = no archive.

    Raises:
        Fenced: this process must end and be restarted. ConfigurationError: the error persists after a restart.
    """
    trouble = Outage(report, stop)

    serving = False

    def forward(what: str, details: Mapping[str, Any]) -> None:
        nonlocal serving
        if what == "serving":
            serving = True
            trouble.told("")
        if what != "left" or serving:  # before "serving", the cause is reported once by `trouble`, not at each try
            report(what, details)

    past = open_archive(archive)
    while not stop.is_set():
        serving = False
        try:
            with closing(KafkaClientSupplier(settings, archive=past)) as supplier:
                Worker(app, category, supplier, stop=stop, report=forward).run()
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)


def route_events(app: App, process: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Runs a router: it copies events to a process's command topic until `stop` is set.

    Raises:
        ConfigurationError: Faust is not installed. ContractError: an event cannot be routed; routers skip no event
            by themselves.
    """
    try:
        from leftfold.faust import route
    except ModuleNotFoundError as error:
        why = f"processes need Faust, which routes their events ({error}): pip install 'leftfold[faust]'"
        raise ConfigurationError(why) from error
    trouble = Outage(report, stop)

    def forward(what: str, details: Mapping[str, Any]) -> None:
        if what == "routing":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        try:
            with ClusterAdmin(settings) as cluster:
                count, most = cluster.partitions(names.commands(process)), _most(cluster, process)
            route(
                app,
                process,
                settings.aiokafka(),
                count,
                stop,
                forward,
                passed_over=partial(skipped_letters, settings, process),
                max_bytes=most,
            )
        except InfrastructureError as error:
            trouble.met(error)


def _most(cluster: ClusterAdmin, process: str) -> int:
    """Largest record batch in bytes that the topics accept to which the router writes."""
    try:
        return cluster.max_batch_bytes([names.commands(process), names.dead(process)])
    except ConfigurationError:
        return MAX_BYTES  # the login may not read the topics' settings
