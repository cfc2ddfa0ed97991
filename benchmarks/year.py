"""The whole year: how long its load and the rebuild of all views take, and what every process needs at most."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.feed import feed
from benchmarks.figure import Figure
from benchmarks.rebuilding import timed_rebuild
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers, java_home, spark_jars
from leftfold.redis import RedisSettings
from leftfold.spark import SparkSettings, spark_session
from services.baskets.app import app

__all__ = ["run"]

MOST = 2_000_000
KINDS = {
    "kafka.Kafka": "broker",
    "redis-server": "redis",
    "SparkSubmit": "spark driver and executor",
    "pyspark.daemon": "spark task",
    "spawn_main": "worker",
}


def run(servers: Servers) -> list[Figure]:
    """One worker loads, then Spark rebuilds view after view; sizes are of resident memory."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    ensure(app, kafka)
    with _sampled() as sizes:
        count = feed(kafka, MOST)
        load = _decided(kafka, count)
        figures = [Figure("year.load", load, "s", note=f"one worker, {count:,} commands, {count / load:,.0f}/s")]
        settings = SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars(), memory="2g")
        with spark_session(settings) as spark:
            for view in app.views:
                seconds, result = timed_rebuild(spark, kafka, redis, view)
                note = f"{result.events:,} events, {result.rows:,} rows"
                figures.append(Figure(f"year.rebuild.{view.name}", seconds, "s", note=note))
    return figures + [Figure(f"year.peak.{kind}", size / 2**20, "MB") for kind, size in sorted(sizes.items())]


def _decided(kafka: KafkaSettings, count: int) -> float:
    context = multiprocessing.get_context("spawn")
    seconds = context.Value("d", 0.0)
    process = context.Process(target=_decide, args=(kafka.bootstrap_servers, count, seconds))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the worker ended with {process.exitcode}")
    return float(seconds.value)


def _decide(address: str, count: int, seconds: Any) -> None:
    tuned_gc()
    worker, done = (
        Worker(app, "baskets", KafkaClientSupplier(KafkaSettings(bootstrap_servers=address)), stop=threading.Event()),
        0,
    )
    began = time.perf_counter()
    while done < count:
        done += worker.step()
    seconds.value = time.perf_counter() - began
    worker.close()


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
