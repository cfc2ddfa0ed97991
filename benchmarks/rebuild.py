"""Rebuilds on Spark: against Spark's own Kafka connector, from the archive, of several views together, and by size."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.connector import connector_fold, usual_pipeline
from benchmarks.figure import Figure
from benchmarks.logs import MOVEMENTS, PARTITIONS, Balance, Moved, balances, write_movements
from benchmarks.workers import decided, feed
from leftfold import FoldView
from leftfold.engine.rebuild.planner import START_SECONDS, Hardware, Workload, forecast
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, Runner, rebuild_together
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import run_locally, tuned_gc
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers, java_home, spark_jars
from leftfold.model.view import View
from leftfold.parquet.archive_check import verify_archive
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.ports.bulk import OffsetRange
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.runtime.connect import open_bulk, open_reader
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.job import spark_pass_runner, spark_runner
from projections.basket_summary import basket_summary
from services.baskets.app import app

__all__ = ["Rebuilds", "archive", "rebuild", "slope", "spark_settings", "together"]

YEAR = 1_800_000
"""The year has 1,802,892."""
SMALL = 2_000_000
CORES = 2


def spark_settings() -> SparkSettings:
    """Two cores and 2 GB, with the jars of Spark's connector."""
    return SparkSettings(master=f"local[{CORES}]", java_home=java_home(), jars=spark_jars(), memory="2g")


class Rebuilds:
    """Rebuilds on some servers, put together as the command line does it, that wait for no projector."""

    def __init__(self, servers: Servers) -> None:
        self.kafka, self.redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
        tuned_gc()

    def of(
        self, view: View[Any, Any], store: RedisViewStore, run: Runner = run_locally, *, archive: str = ""
    ) -> Rebuild:
        """A rebuild of a view."""
        return Rebuild(
            view,
            store,
            open_log=open_bulk(self.kafka, archive),
            open_reader=open_reader(self.kafka, archive),
            open_sink=partial(RedisBulkSink, self.redis),
            run=run,
            options=RebuildOptions(patience=0.0),
        )

    def timed(self, spark: SparkSession, view: View[Any, Any], archive: str = "") -> tuple[float, RebuildResult]:
        """Rebuilds a view; the seconds that it took, and what came of it."""
        with closing(RedisViewStore(self.redis)) as store:
            began = time.perf_counter()
            result = self.of(view, store, spark_runner(spark), archive=archive).run()
            return time.perf_counter() - began, result

    def best(self, spark: SparkSession, view: View[Any, Any], rounds: int) -> float:
        """The fewest seconds of some rounds."""
        return min(self.timed(spark, view)[0] for _ in range(rounds))


def rebuild(servers: Servers) -> list[Figure]:
    """Events per second after session start, sink and seal included; ours and the connector's in one session."""
    rebuilds = Rebuilds(servers)
    kafka, redis = rebuilds.kafka, rebuilds.redis
    ensure(app, kafka)
    decided(kafka, feed(kafka, YEAR))
    write_movements(kafka, SMALL)
    with spark_session(spark_settings()) as spark:
        small = SMALL / rebuilds.best(spark, balances, 3)
        read = max(SMALL / _reading_seconds(spark, kafka) for _ in range(2))
        ours = YEAR / rebuilds.best(spark, basket_summary, 3)
        connector = YEAR / connector_fold(spark, kafka, redis)
        seconds, part = usual_pipeline(spark, kafka, servers.redis)
    usual = f"peer: connector, from_json, groupBy().applyInPandas, redis-py; on {part:,} of the events"
    fold = "peer: connector, our fold and sink"
    return [
        Figure("rebuild.events", small, "events/s", goal=400_000, note=f"{SMALL:,} events of four fields, one Decimal"),
        Figure("rebuild.reading", small, "events/s", peer=read, note="peer: the same client only reads"),
        Figure("rebuild.baskets", ours, "events/s", note=f"{YEAR:,} of the reference application, basket_summary"),
        Figure("rebuild.connector", ours, "events/s", peer=connector, goal=3, note=fold),
        Figure("rebuild.usual_pipeline", ours, "events/s", peer=part / seconds, goal=20, note=usual),
    ]


def _reading_seconds(spark: SparkSession, kafka: KafkaSettings) -> float:
    """Seconds to read all of them in the same number of tasks."""
    with closing(KafkaBulkLog(kafka)) as log:
        ends = log.stable_ends([MOVEMENTS]).offsets[MOVEMENTS]
    halves = [list(ends.items())[n::2] for n in range(2)]

    def count(tasks: Iterable[int]) -> Iterator[int]:
        tuned_gc()
        parts = [OffsetRange(MOVEMENTS, p, 0, end) for task in tasks for p, end in halves[task]]
        with closing(KafkaBulkLog(kafka)) as reader:
            yield sum(len(records) for part in parts for records in reader.read(part))

    began = time.perf_counter()
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(count).sum()
    if found != SMALL:
        raise SystemExit(f"{found:,} events were read, not {SMALL:,}")
    return time.perf_counter() - began


def together(servers: Servers, commands: int = 400_000, rounds: int = 3) -> list[Figure]:
    """All four views of the reference application in one pass; the peer is the slowest view alone."""
    rebuilds = Rebuilds(servers)
    ensure(app, rebuilds.kafka)
    decided(rebuilds.kafka, feed(rebuilds.kafka, commands))
    with spark_session(spark_settings()) as spark:
        rebuilds.timed(spark, app.views[0])
        alone = {view.name: rebuilds.best(spark, view, rounds) for view in app.views}
        best = min(_together_seconds(spark, rebuilds) for _ in range(rounds))
    slowest = max(alone, key=lambda name: alone[name])
    note = f"peer: {slowest} alone, the slowest; one after another they take {sum(alone.values()):.1f} s"
    return [Figure("rebuild.four_views", best, "s", peer=alone[slowest], goal=1.6, smaller=True, note=note)]


def _together_seconds(spark: SparkSession, rebuilds: Rebuilds) -> float:
    with closing(RedisViewStore(rebuilds.redis)) as store:
        began = time.perf_counter()
        each = [rebuilds.of(view, store) for view in app.views]
        results = rebuild_together(each, each[0].plan(), spark_pass_runner(spark))
        seconds = time.perf_counter() - began
    if not all(result.rows for result in results):
        raise SystemExit("a view that was rebuilt with the others is empty")
    return seconds


def archive(servers: Servers) -> list[Figure]:
    """The archive's writing and verification, and rebuilds from it and from Kafka in turns."""
    rebuilds = Rebuilds(servers)
    write_movements(rebuilds.kafka, SMALL)
    with tempfile.TemporaryDirectory(prefix="leftfold-archive-") as folder:
        place = ArchiveFileSystem(folder)
        written = SMALL / _timed(lambda: _archive(rebuilds.kafka, place))
        verified = SMALL / _timed(lambda: verify_archive(place, MOVEMENTS))
        size = sum(place.size(name) or 0 for name in place.names(MOVEMENTS))
        with spark_session(spark_settings()) as spark:
            pairs = [(rebuilds.timed(spark, balances, folder)[0], rebuilds.timed(spark, balances)[0]) for _ in range(3)]
    ours, peer = SMALL / min(pair[0] for pair in pairs), SMALL / min(pair[1] for pair in pairs)
    note = f"{SMALL:,} events of four fields; {size / SMALL:.0f} bytes each in the archive"
    return [
        Figure("archive.rebuild", ours, "events/s", peer=peer, goal=1, note="peer: the same rebuild from Kafka"),
        Figure("archive.write", written, "events/s", note=note),
        Figure("archive.verify", verified, "events/s", note="sizes, sha256, every record"),
    ]


def _archive(kafka: KafkaSettings, place: ArchiveFileSystem) -> None:
    with ClusterAdmin(kafka) as cluster, closing(KafkaBulkLog(kafka)) as log:
        Archiver(place, MOVEMENTS, cluster.identity(MOVEMENTS), log).run()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


SIZES = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
reasons = FoldView("reasons", events=Moved, row=Balance, key=lambda e: e.reason, evolve=balances.evolve)


def slope(servers: Servers) -> list[Figure]:
    """How time grows with events, beside the model of `leftfold.engine.rebuild.planner`; and how straight that is."""
    rebuilds, written = Rebuilds(servers), 0
    views: tuple[View[Any, Any], ...] = (balances, reasons)
    times: dict[str, list[float]] = {view.name: [] for view in views}
    with spark_session(spark_settings()) as spark:
        for size in SIZES:
            write_movements(rebuilds.kafka, size - written)
            written = size
            for view in views:
                times[view.name].append(rebuilds.best(spark, view, 2))
    return [figure for view in views for figure in _slope_figures(view, times[view.name])]


def _slope_figures(view: View[Any, Any], seconds: list[float]) -> list[Figure]:
    slope, start = statistics.linear_regression(SIZES, seconds)
    straight = statistics.correlation(SIZES, seconds) ** 2
    work = Workload(SIZES[-1], PARTITIONS, view.stream_keyed)
    model = SIZES[-1] / (forecast(work, Hardware(CORES)).seconds - START_SECONDS)
    note = f"{SIZES[0]:,} to {SIZES[-1]:,} events on {CORES} cores, {start:.1f} s beside; peer: the model"
    return [
        Figure(f"slope.{view.name}", 1 / slope, "events/s", peer=model, goal=1, note=note),
        Figure(f"slope.{view.name}.straight", straight, "R²", goal=0.98),
    ]
