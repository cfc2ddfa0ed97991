"""Rebuilds of a stream-keyed view, ours against Spark's own Kafka connector, in one session on one log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

from benchmarks.connector import connector_fold, usual_pipeline
from benchmarks.feed import feed
from benchmarks.figure import Figure
from benchmarks.rebuilding import timed_rebuild
from benchmarks.small_events import balances, write_movements
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers, java_home, spark_jars
from leftfold.model import keys as names
from leftfold.ports.bulk import OffsetRange
from leftfold.redis import RedisSettings
from leftfold.spark import SparkSettings, spark_session
from projections.basket_summary import basket_summary
from services.baskets.app import app

__all__ = ["run"]

EVENTS = 1_800_000
"""The year has 1,802,892."""
SMALL = 2_000_000


def run(servers: Servers) -> list[Figure]:
    """Events per second after session start, sink and seal included."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    ensure(app, kafka)
    tuned_gc()
    _decide(kafka, feed(kafka, EVENTS))
    write_movements(kafka, SMALL)
    settings = SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars(), memory="2g")
    with spark_session(settings) as spark:
        small = max(SMALL / timed_rebuild(spark, kafka, redis, balances)[0] for _ in range(3))
        read = max(SMALL / _read(spark, kafka) for _ in range(2))
        ours = max(EVENTS / timed_rebuild(spark, kafka, redis, basket_summary)[0] for _ in range(3))
        connector = EVENTS / connector_fold(spark, kafka, redis)
        seconds, part = usual_pipeline(spark, kafka, servers.redis)
    note = f"peer: connector, from_json, groupBy().applyInPandas, redis-py; on {part:,} of the events"
    return [
        Figure("rebuild.events", small, "events/s", goal=400_000, note=f"{SMALL:,} events of four fields, one Decimal"),
        Figure("rebuild.reading", small, "events/s", peer=read, note="peer: the same client only reads"),
        Figure("rebuild.baskets", ours, "events/s", note=f"{EVENTS:,} of the reference application, basket_summary"),
        Figure(
            "rebuild.connector", ours, "events/s", peer=connector, goal=3, note="peer: connector, our fold and sink"
        ),
        Figure("rebuild.usual_pipeline", ours, "events/s", peer=part / seconds, goal=20, note=note),
    ]


def _decide(kafka: KafkaSettings, count: int) -> None:
    worker, done = Worker(app, "baskets", KafkaClientSupplier(kafka), stop=threading.Event()), 0
    while done < count:
        done += worker.step()
    worker.close()


def _read(spark: SparkSession, kafka: KafkaSettings) -> float:
    """Seconds to read all of them in the same number of tasks."""
    topic = names.events("movements")
    log = KafkaBulkLog(kafka)
    ends = log.stable_ends([topic]).offsets[topic]
    log.close()
    halves = [list(ends.items())[n::2] for n in range(2)]

    def count(tasks: Iterable[int]) -> Iterator[int]:
        tuned_gc()
        reader = KafkaBulkLog(kafka)
        parts = [OffsetRange(topic, p, 0, end) for task in tasks for p, end in halves[task]]
        yield sum(len(records) for part in parts for records in reader.read(part))
        reader.close()

    began = time.perf_counter()
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(count).sum()
    if found != SMALL:
        raise SystemExit(f"{found:,} events were read, not {SMALL:,}")
    return time.perf_counter() - began
