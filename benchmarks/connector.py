"""The two peers of a rebuild: our fold behind Spark's Kafka connector, and the pipeline that people usually write."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import StringType, StructField, StructType

from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.views.generations import open_generation
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import events
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkRecord, OffsetRange
from leftfold.ports.flush import Phase
from leftfold.ports.protocols import Headers
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from projections.basket_summary import basket_summary
from services.baskets.app import app

__all__ = ["connector_fold", "usual_pipeline"]

TOPIC = events("baskets")
PART = 120_000


class _Row:
    """A row of the connector's frame as a BulkRecord."""

    def __init__(self, offset: int, key: bytes, value: bytes, headers: list[dict[str, Any]]) -> None:
        self._offset, self._key, self._value, self._headers = offset, key, value, headers

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return [(header["key"], header["value"]) for header in self._headers]

    def timestamp(self) -> tuple[int, int]:
        return 0, 0


class _Frame:
    """A BulkLog that hands out what the connector read into one partition."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches

    def partitions(self, topic: str) -> int:
        return app.partitions

    def stable_ends(self, topics: Iterable[str]) -> Position:
        return Position()

    def starts(self, topics: Iterable[str]) -> Position:
        return Position()

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        return {}

    def read(self, part: OffsetRange) -> Iterator[list[BulkRecord]]:
        for batch in self._batches:
            columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers"))
            yield [_Row(*row) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        return


def connector_fold(spark: SparkSession, kafka: KafkaSettings, settings: RedisSettings) -> float:
    """Seconds for Spark's connector, one task per partition, into the same fold and the same sink."""
    store = RedisViewStore(settings)
    generation = open_generation(store, basket_summary, {TOPIC: app.partitions}, Phase.BULK)
    sink = partial(RedisBulkSink, settings)

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        part = OffsetRange(TOPIC, int(first.column("partition")[0].as_py()), 0, 1 << 60)

        def everything() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        job = BulkJob(basket_summary, generation, (part,), lambda: _Frame(everything()), sink)
        for result in job.fold_streams([part], lambda count: None):
            yield pa.RecordBatch.from_pydict({"rows": [result.rows]})

    began = time.perf_counter()
    _read(spark, kafka).mapInArrow(fold, "rows long").collect()
    seconds = time.perf_counter() - began
    store.unlink(generation)
    store.close()
    return seconds


def usual_pipeline(spark: SparkSession, kafka: KafkaSettings, url: str) -> tuple[float, int]:
    """Seconds and events of the pipeline that tutorials show, on a slice of the same topic."""
    schema = StructType(
        [StructField(name, StringType()) for name in ("basket_id", "product_id", "sales_value", "total")]
    )

    def total(rows: pd.DataFrame) -> pd.DataFrame:
        values = [Decimal(value) for value in rows.sort_values("offset")["sales_value"] if value]
        return pd.DataFrame({"key": [rows["key"].iloc[0]], "lines": [len(values)], "total": [str(sum(values))]})

    def write(rows: Iterable[Any]) -> None:
        client = redis.Redis.from_url(url)
        pipe = client.pipeline(transaction=False)
        for row in rows:
            pipe.hset(f"usual:{row.key}", mapping={"lines": row.lines, "total": row.total})
        pipe.execute()
        client.close()

    frame = _read(spark, kafka).where(col("offset") < PART // app.partitions)
    parsed = frame.select(
        col("key").cast("string").alias("key"),
        "offset",
        from_json(col("value").cast("string"), schema).alias("event"),
    ).select("key", "offset", "event.sales_value")
    began = time.perf_counter()
    parsed.groupBy("key").applyInPandas(total, "key string, lines long, total string").foreachPartition(write)
    seconds = time.perf_counter() - began
    return seconds, frame.count()


def _read(spark: SparkSession, kafka: KafkaSettings) -> DataFrame:
    reader = spark.read.format("kafka").option("subscribe", TOPIC).option("includeHeaders", "true")
    for name, value in kafka.java().items():
        reader = reader.option(f"kafka.{name}", value)
    reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
    return reader.load().select("partition", "offset", "key", "value", "headers")
