"""A rebuild on Spark, put together as the command line does it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, Runner
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import run_locally
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.view import View
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.runtime.connect import open_bulk, open_reader
from leftfold.spark.core.job import spark_runner

__all__ = ["rebuild_of", "timed_rebuild"]


def rebuild_of(
    view: View[Any, Any],
    store: RedisViewStore,
    kafka: KafkaSettings,
    redis: RedisSettings,
    run: Runner = run_locally,
    *,
    archive: str = "",
) -> Rebuild:
    """A rebuild that waits for no projector."""
    return Rebuild(
        view,
        store,
        open_log=open_bulk(kafka, archive),
        open_reader=open_reader(kafka, archive),
        open_sink=partial(RedisBulkSink, redis),
        run=run,
        options=RebuildOptions(patience=0.0),
    )


def timed_rebuild(
    spark: SparkSession,
    kafka: KafkaSettings,
    redis: RedisSettings,
    view: View[Any, Any],
    *,
    archive: str = "",
) -> tuple[float, RebuildResult]:
    """Rebuilds a view; the seconds that it took, and what came of it."""
    store = RedisViewStore(redis)
    began = time.perf_counter()
    result = rebuild_of(view, store, kafka, redis, spark_runner(spark), archive=archive).run()
    seconds = time.perf_counter() - began
    store.close()
    return seconds, result
