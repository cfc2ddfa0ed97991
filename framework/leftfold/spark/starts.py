"""Where a topic begins, asked with the connector's own Kafka client: Spark itself passes over what is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.hole import hole
from leftfold.errors import InfrastructureError

__all__ = ["check_start"]


def check_start(spark: SparkSession, topic: str, kafka: Mapping[str, str]) -> None:
    """Checks that a topic still holds its first records.

    Raises:
        InfrastructureError: it does not, or nobody answers.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # the JVM that has the connector's client
    properties = jvm.java.util.HashMap()
    for name, value in kafka.items():
        properties.put(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            starts = _starts(jvm, admin, topic)
        finally:
            admin.close()
    except Exception as error:  # py4j wraps whatever Java throws
        raise InfrastructureError(f"Spark's Kafka client cannot ask where {topic} begins: {_brief(error)}") from error
    for partition, start in sorted(starts.items()):
        if start > 0:
            raise hole(topic, partition, 0, start)


def _starts(jvm: Any, admin: Any, topic: str) -> dict[int, int]:
    described = admin.describeTopics(jvm.java.util.List.of(topic)).allTopicNames().get()
    earliest, wanted = jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest(), jvm.java.util.HashMap()
    for partition in range(described.get(topic).partitions().size()):
        wanted.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), earliest)
    found = admin.listOffsets(wanted).all().get()
    return {entry.getKey().partition(): entry.getValue().offset() for entry in found.entrySet()}


def _brief(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if "xception" in line), repr(error))
