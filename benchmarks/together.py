"""All four views of the reference application rebuilt in one pass over the log, against each of them alone."""

from __future__ import annotations

import threading
import time

from pyspark.sql import SparkSession

from benchmarks.feed import feed
from benchmarks.figure import Figure
from benchmarks.rebuilding import rebuild_of, timed_rebuild
from leftfold.engine.rebuild.rebuilder import rebuild_together
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.local import Servers, java_home, spark_jars
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.job import spark_pass_runner
from services.baskets.app import app

__all__ = ["run"]

COMMANDS, ROUNDS = 400_000, 3


def run(servers: Servers, commands: int = COMMANDS) -> list[Figure]:
    """The best of three of each; the peer is the slowest view alone, and the note has the sum of all."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    ensure(app, kafka)
    tuned_gc()
    _decide(kafka, feed(kafka, commands))
    settings = SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars(), memory="2g")
    with spark_session(settings) as spark:
        timed_rebuild(spark, kafka, redis, app.views[0])
        alone = {
            view.name: min(timed_rebuild(spark, kafka, redis, view)[0] for _ in range(ROUNDS)) for view in app.views
        }
        together = min(_timed_together(spark, kafka, redis) for _ in range(ROUNDS))
    slowest = max(alone, key=lambda name: alone[name])
    note = f"peer: {slowest} alone, the slowest; one after another they take {sum(alone.values()):.1f} s"
    return [Figure("rebuild.four_views", together, "s", peer=alone[slowest], goal=1.6, smaller=True, note=note)]


def _decide(kafka: KafkaSettings, count: int) -> None:
    worker, done = Worker(app, "baskets", KafkaClientSupplier(kafka), stop=threading.Event()), 0
    while done < count:
        done += worker.step()
    worker.close()


def _timed_together(spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings) -> float:
    store = RedisViewStore(redis)
    began = time.perf_counter()
    rebuilds = [rebuild_of(view, store, kafka, redis) for view in app.views]
    results = rebuild_together(rebuilds, rebuilds[0].plan(), spark_pass_runner(spark))
    seconds = time.perf_counter() - began
    store.close()
    if not all(result.rows for result in results):
        raise SystemExit("a view that was rebuilt with the others is empty")
    return seconds
