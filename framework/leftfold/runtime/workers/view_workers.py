"""Worker processes that keep views: projectors, Spark streaming, and Faust agents of users."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.engine.archive.archived_log import ArchivedReader
from leftfold.engine.views.projector import Projector
from leftfold.errors import ConfigurationError, LogGap
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.app import App
from leftfold.model.view import View
from leftfold.ports.protocols import LogReader, Report
from leftfold.redis import RedisSettings, RedisViewStore, refuse_eviction
from leftfold.runtime.connect import open_archive, open_bulk, open_reader, redis_settings
from leftfold.runtime.lifecycle import Outage
from leftfold.runtime.rebuilding import spark_settings
from leftfold.version import install_command

if TYPE_CHECKING:
    from leftfold.spark.streaming.projection import ViewStream

__all__ = ["follow", "run_agents", "stream"]


def run_agents(app: App, name: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Runs the Faust agents of a stream over its events until `stop` is set; reconnects when servers fail.

    Raises:
        ConfigurationError: Faust is not installed, or Redis evicts keys. Fenced: this process must end and be
            restarted. ContractError: an event cannot be read.
    """
    try:
        from leftfold.faust.streams import streams_of
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"streams need Faust ({error}): {install_command('faust')}") from error
    stream, trouble = app.stream(name), Outage(report, stop)
    redis = redis_settings() if stream.views else None

    def work() -> None:
        with ExitStack() as opened:
            store = opened.enter_context(closing(RedisViewStore(redis))) if redis else None
            if redis:
                refuse_eviction(redis)
            with ClusterAdmin(settings) as cluster:
                streams = streams_of(
                    app, stream, settings.aiokafka(), store, cluster.partitions, report=trouble.ended_by("streaming")
                )
            streams.run(stop)

    trouble.reconnecting(work)


def follow(
    views: Sequence[View[Any, Any]],
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: threading.Event,
    report: Report,
    *,
    options: Mapping[str, Any],
    archive: str = "",
) -> None:
    """Runs a projector that keeps views at the end of the log until `stop` is set.

    Args:
        options: arguments of the Projector. Its member's name must be the same after a restart: under another name, the
            buckets of the old member stand still until its heartbeat expires.

    Raises:
        Fenced: this process must end and be restarted.
        ConfigurationError: Redis evicts keys.
    """
    trouble, started, past = Outage(report, stop), set[str](), open_archive(archive)

    def work() -> None:
        refuse_eviction(redis)
        with ExitStack() as opened:
            store = opened.enter_context(closing(RedisViewStore(redis)))
            readers: list[KafkaLogReader] = []

            def open_log() -> LogReader:
                readers.append(opened.enter_context(closing(KafkaLogReader(kafka))))
                return readers[-1] if past is None else ArchivedReader(readers[-1], past)

            projector = Projector(views, open_log, store, report=report, started=started, **options)
            has_reported = False
            while not stop.is_set():
                projector.step()
                if not has_reported:
                    report("following", {"views": ", ".join(view.name for view in views)})
                    has_reported = True
                trouble.report_cause(next((reader.trouble for reader in readers if reader.trouble), ""))
            projector.close()

    trouble.reconnecting(work)


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
    """Runs Spark streaming that keeps views at the end of the log until `stop` is set.

    Args:
        options: arguments of each ViewStream. `trigger`: seconds between micro-batches; 0 = without a pause.
            `max_parked`: how many rows of a view may be parked. `folds`: the hash of each view's fold, by view name.

    Raises:
        ConfigurationError: Spark or Java is missing, or Redis evicts keys.
    """
    from leftfold.local import spark_jars
    from leftfold.spark.core.session import spark_session
    from leftfold.spark.streaming.projection import StreamPorts, ViewStream

    report("starting Spark", {"views": ", ".join(view.name for view in views)})
    settings = spark_settings(None)
    if not settings.jars:
        settings = settings.model_copy(update={"jars": spark_jars()})
    ports = StreamPorts(
        open_store=partial(RedisViewStore, redis),
        open_log=open_bulk(kafka, archive),
        open_reader=open_reader(kafka, archive),
        kafka=kafka.java(),
        archive=archive or "DIR",
    )
    with spark_session(settings) as spark:
        trouble = Outage(report, stop)
        arguments = {name: value for name, value in options.items() if name != "folds"}
        folds, started = options.get("folds", {}), set[str]()

        def open_stream(view: View[Any, Any]) -> ViewStream:
            fold = folds.get(view.name, "")
            return ViewStream(spark, view, ports=ports, report=report, fold=fold, started=started, **arguments)

        def work() -> None:
            refuse_eviction(redis)
            gaps: dict[str, str] = {}
            with ExitStack() as opened:
                streams = [opened.enter_context(closing(open_stream(view))) for view in views]
                while not stop.is_set():
                    for one in streams:
                        _step(one, gaps, report)
                    trouble.report_cause("")

        trouble.reconnecting(work)


def _step(one: ViewStream, gaps: dict[str, str], report: Report) -> None:
    """One step of a stream; a view that needs trimmed events stops, and the other views continue."""
    try:
        one.step(0.1)
    except LogGap as error:
        # Reported once, and again when the gap is another one.
        if gaps.get(one.view.name) != str(error):
            report("view stopped", {"view": one.view.name, "why": str(error)})
        gaps[one.view.name] = str(error)
