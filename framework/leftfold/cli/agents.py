"""The stream of a user, made again whenever its servers fail it, or while another process keeps its views."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from leftfold.app import App
from leftfold.cli.trouble import Trouble
from leftfold.connection import redis_settings, ring
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report

__all__ = ["run_agents"]


def run_agents(app: App, name: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Has agents go through events until `stop` is set.

    Raises:
        ConfigurationError: Faust is not installed, or Redis evicts keys. Fenced: end and start again.
        ContractError: an event cannot be read.
    """
    try:
        from leftfold.faust.streaming import streams_of
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"streams need Faust ({error}): pip install 'leftfold[faust]'") from error
    stream, trouble = app.stream(name), Trouble(report, stop)
    redis = redis_settings() if stream.views else None

    def told(what: str, details: Mapping[str, Any]) -> None:
        if what == "streaming":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        store = ring("leftfold.redis").RedisViewStore(redis) if redis else None
        try:
            if redis:
                ring("leftfold.redis").refuse_eviction(redis)
            with Cluster(settings) as cluster:
                streams = streams_of(app, stream, settings.aiokafka(), store, cluster.partitions, report=told)
            streams.run(stop)
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)
        finally:
            if store is not None:
                store.close()
