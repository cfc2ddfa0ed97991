"""The whole year: how long its load and the rebuild of all views take, and what every process needs at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.figure import Figure
from benchmarks.rebuild import Rebuilds, spark_settings
from benchmarks.workers import CONTEXT, beside, decided, feed
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.spark import spark_session
from services.baskets.app import app

__all__ = ["year"]

MOST = 2_000_000
KINDS = {
    "kafka.Kafka": "broker",
    "redis-server": "redis",
    "SparkSubmit": "spark driver and executor",
    "pyspark.daemon": "spark task",
    "spawn_main": "worker",
}


def year(servers: Servers) -> list[Figure]:
    """One worker loads, then Spark rebuilds view after view; sizes are of resident memory."""
    rebuilds, seconds = Rebuilds(servers), CONTEXT.Value("d", 0.0)
    ensure(app, rebuilds.kafka)
    with _sampled() as sizes:
        count = feed(rebuilds.kafka, MOST)
        with beside((_decide, servers.kafka, count, seconds)):
            pass
        if not (load := float(seconds.value)):
            raise SystemExit("the worker failed")
        figures = [Figure("year.load", load, "s", note=f"one worker, {count:,} commands, {count / load:,.0f}/s")]
        with spark_session(spark_settings()) as spark:
            for view in app.views:
                took, result = rebuilds.timed(spark, view)
                note = f"{result.events:,} events, {result.rows:,} rows"
                figures.append(Figure(f"year.rebuild.{view.name}", took, "s", note=note))
    return figures + [Figure(f"year.peak.{kind}", size / 2**20, "MB") for kind, size in sorted(sizes.items())]


def _decide(stop: object, address: str, count: int, seconds: Any) -> None:
    began = time.perf_counter()
    decided(KafkaSettings(bootstrap_servers=address), count)
    seconds.value = time.perf_counter() - began


@contextmanager
def _sampled() -> Iterator[dict[str, int]]:
    """The largest size of any process of each kind while the block runs."""
    sizes: dict[str, int] = {}
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    line, size = " ".join(process.cmdline()), process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                for word, kind in KINDS.items():
                    if word in line:
                        sizes[kind] = max(sizes.get(kind, 0), size)

    thread = threading.Thread(target=sample, name="sizes")
    thread.start()
    try:
        yield sizes
    finally:
        done.set()
        thread.join()
