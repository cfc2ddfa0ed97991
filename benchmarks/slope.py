"""Rebuilds of 0.25 to 4 million events: does time grow as the model in `leftfold.engine.rebuild.planner` says?"""

from __future__ import annotations

import statistics
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.figure import Figure
from benchmarks.rebuilding import timed_rebuild
from benchmarks.small_events import PARTITIONS, Balance, Moved, balances, write_movements
from leftfold import FoldView
from leftfold.engine.rebuild.planner import START_SECONDS, Hardware, Workload, forecast
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers, java_home
from leftfold.model.view import View
from leftfold.redis import RedisSettings
from leftfold.spark import SparkSettings, spark_session

__all__ = ["run"]

SIZES = (250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
CORES = 2


reasons = FoldView("reasons", events=Moved, row=Balance, key=lambda e: e.reason, evolve=balances.evolve)


def run(servers: Servers) -> list[Figure]:
    """Events per second by the slope of time over events, against the model's; and how straight the line is."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    tuned_gc()
    views: tuple[View[Any, Any], ...] = (balances, reasons)
    times: dict[str, list[float]] = {view.name: [] for view in views}
    written = 0
    with spark_session(SparkSettings(master=f"local[{CORES}]", java_home=java_home(), memory="2g")) as spark:
        for size in SIZES:
            write_movements(kafka, size - written)
            written = size
            for view in views:
                times[view.name].append(_best(spark, kafka, redis, view))
    return [figure for view in views for figure in _figures(view, times[view.name])]


def _best(spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings, view: View[Any, Any]) -> float:
    return min(timed_rebuild(spark, kafka, redis, view)[0] for _ in range(2))


def _figures(view: View[Any, Any], seconds: list[float]) -> list[Figure]:
    slope, start = statistics.linear_regression(SIZES, seconds)
    straight = statistics.correlation(SIZES, seconds) ** 2
    work = Workload(SIZES[-1], PARTITIONS, view.stream_keyed)
    model = SIZES[-1] / (forecast(work, Hardware(CORES)).seconds - START_SECONDS)
    note = f"{SIZES[0]:,} to {SIZES[-1]:,} events on {CORES} cores, {start:.1f} s beside; peer: the model"
    return [
        Figure(f"slope.{view.name}", 1 / slope, "events/s", peer=model, goal=1, note=note),
        Figure(f"slope.{view.name}.straight", straight, "R²", goal=0.98),
    ]
