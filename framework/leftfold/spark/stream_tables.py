"""Tables of events that grow: Spark's Kafka source for the offsets, our own code for what is in a record."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from leftfold import names
from leftfold.spark.frames import KAFKA_OPTIONS, typed
from leftfold.spark.misfits import Misfits
from leftfold.spark.starts import first_offsets
from leftfold.spark.tables import EventTable

__all__ = ["stream_frame"]


def stream_frame(
    spark: SparkSession,
    table: EventTable,
    kafka: Mapping[str, str],
    topics: Mapping[str, int],
    misfits: Misfits | None = None,
) -> DataFrame:
    """The events of one class from the start of the log on.

    A batch ends where the log is stable, so no decision is cut in two: limits on the size of a batch would do that.

    Args:
        kafka: the properties of a Java client. topics: how many partitions each has. misfits: as of `typed`.
    """
    topic = names.events(table.event.__leftfold__.category)
    reader = spark.readStream.format("kafka").option("subscribe", topic)
    for name, value in kafka.items():
        reader = reader.option(f"kafka.{name}", value)
    for name, value in KAFKA_OPTIONS.items():
        reader = reader.option(name, value)
    reader = reader.option("startingOffsets", first_offsets(topic, topics[topic]))
    return typed(reader.load(), table.schema, table.row, misfits)
