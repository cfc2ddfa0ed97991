"""Spark's Kafka source, and the first offsets of topics, so that Spark does not silently skip lost records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession

from leftfold.engine.log_gaps import beginning, log_gap, out_of_reach, unreachable
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.errors import ConfigurationError, InfrastructureError, LogGap
from leftfold.model.position import Position
from leftfold.ports.flush import Phase
from leftfold.ports.protocols import Report

__all__ = ["OffsetCheck", "check_start", "first_offsets", "kafka_source"]


_SOURCE = {
    "startingOffsets": "earliest",
    "includeHeaders": "true",
    # A frame or batch that lacks records must fail.
    "failOnDataLoss": "true",
    # A Java client reads aborted records by default.
    "kafka.isolation.level": "read_committed",
}


def kafka_source(reader: Any, topics: Iterable[str], kafka: Mapping[str, str], **options: Any) -> DataFrame:
    """The committed records of some topics, read by Spark's own connector.

    Args:
        reader: `read` or `readStream` of a session. kafka: the properties of a Java client. options: of the source.
    """
    reader = reader.format("kafka").option("subscribe", ",".join(topics))
    for name, value in {**{f"kafka.{name}": value for name, value in kafka.items()}, **_SOURCE, **options}.items():
        reader = reader.option(name, value)
    found: DataFrame = reader.load()
    return found


# A busy broker is asked again; a process that is stopping waits no longer than this for one that does not answer.
_PATIENCE = {"request.timeout.ms": "6000", "default.api.timeout.ms": "12000"}


def check_start(spark: SparkSession, topic: str, kafka: Mapping[str, str]) -> int:
    """Checks that a topic still holds its first records; returns its number of partitions.

    Raises:
        LogGap: the first records were deleted.
        ConfigurationError: the session has no Kafka connector.
        InfrastructureError: no broker answers.
    """
    starts = topic_starts(spark, [topic], kafka)
    for missing in unreachable(starts, Position()):
        raise log_gap(*missing)
    return len(starts.offsets[topic])


def topic_starts(spark: SparkSession, topics: Collection[str], kafka: Mapping[str, str]) -> Position:
    """The first offset that each partition of some topics still holds.

    Args:
        kafka: the properties of a Java client.

    Raises:
        ConfigurationError: the session has no Kafka connector.
        InfrastructureError: no broker answers.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # the JVM that has the connector's client
    if isinstance(jvm.org.apache.kafka.clients.admin.Admin, JavaPackage):
        raise ConfigurationError(
            "this Spark session has no Kafka connector; start it with SparkSettings(jars=leftfold.local.spark_jars())"
        )
    properties = jvm.java.util.HashMap()
    for name, value in {**kafka, **_PATIENCE}.items():
        properties.put(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            return Position({topic: _starts(jvm, admin, topic) for topic in topics})
        finally:
            admin.close()
    except Exception as error:  # py4j wraps whatever Java throws
        names = ", ".join(topics)
        raise InfrastructureError(f"Spark's Kafka client cannot ask where {names} begins: {_brief(error)}") from error


def first_offsets(topic: str, partitions: int) -> str:
    """Spark's starting offsets: 0, so that Spark fails if it was deleted; "earliest" would skip the gap silently."""
    return json.dumps({topic: {str(partition): 0 for partition in range(partitions)}})


def _starts(jvm: Any, admin: Any, topic: str) -> dict[int, int]:
    described = admin.describeTopics(jvm.java.util.List.of(topic)).allTopicNames().get()
    earliest, wanted = jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest(), jvm.java.util.HashMap()
    for partition in range(described.get(topic).partitions().size()):
        wanted.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), earliest)
    found = admin.listOffsets(wanted).all().get()
    return {entry.getKey().partition(): entry.getValue().offset() for entry in found.entrySet()}


def _brief(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if "xception" in line), repr(error))


class OffsetCheck:
    """Refuses a stream of one view that would have to read records that its topics no longer hold.

    Args:
        kafka: the properties of a Java client. remedy: what the operator should do then, for the message.
    """

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str], view: str, remedy: str) -> None:
        self._spark, self._kafka, self._view, self._remedy = spark, kafka, view, remedy

    def check(self, wanted: Position) -> None:
        """Checks that the topics of a position can be read from there.

        Raises:
            LogGap: the topics begin after it.
            InfrastructureError: no broker answers.
        """
        if missing := unreachable(topic_starts(self._spark, wanted.offsets.keys(), self._kafka), wanted):
            raise out_of_reach(self._view, missing, self._remedy)

    def within(self, drivers: Sequence[MicroBatchDriver], report: Report) -> list[MicroBatchDriver]:
        """The generations that can continue, the live one among them; each of the others is reported.

        Raises:
            LogGap: the live generation, or every one, needs records before the start of the topics.
        """
        found, lost = list[MicroBatchDriver](), list[LogGap]()
        for driver in drivers:
            try:
                self.check(beginning(driver.generation.topics) | driver.position())
            except LogGap as error:
                if driver.generation.phase is Phase.LIVE:
                    raise
                lost.append(error)
                details = {"view": self._view, "generation": driver.generation.id, "why": str(error)}
                report("generation left behind", details)
            else:
                found.append(driver)
        if lost and not found:
            raise lost[0]
        return found
