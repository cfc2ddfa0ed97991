"""The processes of one decider, process manager, reaction or router, reconnected whenever their servers fail."""

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
    """Acts for a reaction until `stop` is set.

    Raises:
        Fenced: this process must end and be started again. ContractError: an event is newer than this code.
    """
    trouble = Outage(report, stop)

    def told(what: str, details: Mapping[str, Any]) -> None:
        if what == "reacting":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        try:
            ReactionRunner(app, name, settings, stop=stop, report=told).run(trouble.told)
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)


def decide(
    app: App, category: str, settings: KafkaSettings, stop: threading.Event, report: Report, *, archive: str = ""
) -> None:
    """Decides a category's commands until `stop` is set.

    Args:
        archive: where events are that the topic has lost; '' = nowhere.

    Raises:
        Fenced: this process must end and be started again. ConfigurationError: starting again would not help.
    """
    trouble = Outage(report, stop)

    served = False

    def told(what: str, details: Mapping[str, Any]) -> None:
        nonlocal served
        if what == "serving":
            served = True
            trouble.told("")
        if what != "left" or served:  # why it never got so far is told once, however often it is tried
            report(what, details)

    past = open_archive(archive)
    while not stop.is_set():
        served = False
        try:
            with closing(KafkaClientSupplier(settings, archive=past)) as supplier:
                Worker(app, category, supplier, stop=stop, report=told).run()
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)


def route_events(app: App, process: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Routes the events that concern a process until `stop` is set.

    Raises:
        ConfigurationError: Faust is not installed. ContractError: an event cannot be routed, and none is skipped.
    """
    try:
        from leftfold.faust import route
    except ModuleNotFoundError as error:
        why = f"processes need Faust, which routes their events ({error}): pip install 'leftfold[faust]'"
        raise ConfigurationError(why) from error
    trouble = Outage(report, stop)

    def told(what: str, details: Mapping[str, Any]) -> None:
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
                told,
                passed_over=partial(skipped_letters, settings, process),
                max_bytes=most,
            )
        except InfrastructureError as error:
            trouble.met(error)


def _most(cluster: ClusterAdmin, process: str) -> int:
    """What a batch of records may weigh where the router writes."""
    try:
        return cluster.max_batch_bytes([names.commands(process), names.dead(process)])
    except ConfigurationError:
        return MAX_BYTES  # not allowed to ask
