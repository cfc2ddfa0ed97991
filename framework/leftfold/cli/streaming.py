"""The process that folds views by Spark streaming, made again whenever its servers fail it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.cli.rebuilding import spark_settings
from leftfold.cli.trouble import Trouble
from leftfold.connection import ring
from leftfold.errors import InfrastructureError, LogHole
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report
from leftfold.redis import RedisSettings, refuse_eviction
from leftfold.view import View
from leftfold.wholelog import open_bulk, open_reader

if TYPE_CHECKING:
    from leftfold.spark.settings import SparkSettings
    from leftfold.spark.streaming import StreamPorts, ViewStream

__all__ = ["stream"]


def stream(
    views: Sequence[View[Any, Any]],
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: threading.Event,
    report: Report,
    *,
    archive: str,
    options: Mapping[str, Any],
) -> None:
    """Keeps views at the end of the log until `stop` is set.

    Args:
        archive: where events are that the topic has lost; '' = nowhere.
        options: of each ViewStream. `trigger`: seconds from batch to batch; 0 = as they come. `max_parked`: how many
            rows of a view may be parked. `folds`: which code folds, by view.

    Raises:
        ConfigurationError: Spark or Java is missing, or Redis evicts keys.
    """
    session, streaming = ring("leftfold.spark.session"), ring("leftfold.spark.streaming")
    report("starting Spark", {"views": ", ".join(view.name for view in views)})
    with session.spark_session(_settings()) as spark:
        ports, trouble = _ports(kafka, redis, archive), Trouble(report, stop)
        told = {name: value for name, value in options.items() if name != "folds"}
        folds, started = options.get("folds", {}), set[str]()

        def made(view: View[Any, Any]) -> ViewStream:
            one: ViewStream = streaming.ViewStream(
                spark, view, ports=ports, report=report, fold=folds.get(view.name, ""), started=started, **told
            )
            return one

        while not stop.is_set():
            try:
                refuse_eviction(redis)
                _follow(made, views, stop, trouble)
            except InfrastructureError as error:
                trouble.met(error)


def _follow(
    made: Callable[[View[Any, Any]], ViewStream],
    views: Sequence[View[Any, Any]],
    stop: threading.Event,
    trouble: Trouble,
) -> None:
    streams: list[ViewStream] = []
    holes: dict[str, str] = {}
    try:
        streams.extend(map(made, views))
        while not stop.is_set():
            for one in streams:
                _step(one, holes, trouble.report)
            trouble.told("")
    finally:
        for one in streams:
            one.close()


def _step(one: ViewStream, holes: dict[str, str], report: Report) -> None:
    """One step; a view that needs what is gone from its topics stands still, and the others go on."""
    try:
        one.step(0.1)
    except LogHole as error:
        # Told once, and again when it is another hole.
        if holes.get(one.view.name) != str(error):
            report("view stopped", {"view": one.view.name, "why": str(error)})
        holes[one.view.name] = str(error)


def _settings() -> SparkSettings:
    """Spark's settings with the jars of its Kafka connector."""
    settings = spark_settings(None)
    return settings if settings.jars else settings.model_copy(update={"jars": ring("leftfold.local").spark_jars()})


def _ports(kafka: KafkaSettings, redis: RedisSettings, archive: str) -> StreamPorts:
    ports: StreamPorts = ring("leftfold.spark.streaming").StreamPorts(
        open_store=partial(ring("leftfold.redis").RedisViewStore, redis),
        open_log=open_bulk(kafka, archive),
        open_reader=open_reader(kafka, archive),
        kafka=kafka.java(),
        archive=archive or "DIR",
    )
    return ports
