"""Tables of events that grow: Spark's Kafka source for the offsets, our own code for what is in a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from leftfold import names
from leftfold.garbage import tuned_gc
from leftfold.spark.frames import KAFKA_OPTIONS, record_of
from leftfold.spark.starts import first_offsets
from leftfold.spark.tables import EventTable

__all__ = ["stream_frame"]

Batches = Iterator[pa.RecordBatch]


def stream_frame(
    spark: SparkSession, table: EventTable, kafka: Mapping[str, str], topics: Mapping[str, int]
) -> DataFrame:
    """The events of one class from the start of the log on.

    A batch ends where the log is stable, so no decision is cut in two: limits on the size of a batch would do that.

    Args:
        kafka: the properties of a Java client. topics: how many partitions each has.
    """
    topic = names.events(table.event.__leftfold__.category)
    reader = spark.readStream.format("kafka").option("subscribe", topic)
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    for name, value in KAFKA_OPTIONS.items():
        reader = reader.option(name, value)
    reader = reader.option("startingOffsets", first_offsets(topic, topics[topic]))

    def decode(batches: Batches) -> Batches:
        tuned_gc()
        for batch in batches:
            records = [record_of(told) for told in batch.to_pylist()]
            yield table.batch([table.read(record) for record in records if table.wants(record.headers)])

    chosen = reader.load().select("topic", "partition", "offset", "key", "value", "headers")
    return chosen.mapInArrow(decode, from_arrow_schema(table.schema))
