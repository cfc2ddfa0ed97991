"""The router of one process, made again whenever its servers fail it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from leftfold import names
from leftfold.app import App
from leftfold.cli.passed_over import passed_over
from leftfold.cli.trouble import Trouble
from leftfold.engine.router import MAX_BYTES
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report

__all__ = ["route_events"]


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
    trouble = Trouble(report, stop)

    def told(what: str, details: Mapping[str, Any]) -> None:
        if what == "routing":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        try:
            with Cluster(settings) as cluster:
                count, most = cluster.partitions(names.commands(process)), _most(cluster, process)
            route(
                app,
                process,
                settings.aiokafka(),
                count,
                stop,
                told,
                passed_over=partial(passed_over, settings, process),
                max_bytes=most,
            )
        except InfrastructureError as error:
            trouble.met(error)


def _most(cluster: Cluster, process: str) -> int:
    """What a batch of records may weigh where the router writes."""
    try:
        return cluster.max_batch_bytes([names.commands(process), names.dead(process)])
    except ConfigurationError:
        return MAX_BYTES  # not allowed to ask
