"""What brokers say of the cluster, as every client of confluent-kafka gives it."""

from __future__ import annotations

from typing import Any, TypeAlias

from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

from leftfold.testing.simulation.kafka.client import Client

__all__ = ["Metadata", "cluster_metadata"]

Metadata: TypeAlias = Any
"""A `confluent_kafka.admin.ClusterMetadata`, whose fields are untyped."""


def cluster_metadata(client: Client, topic: str | None, timeout: float) -> Metadata:
    """Brokers and topics, one of them or all; a topic that is not there has an error.

    Raises:
        KafkaException: no broker answers in time.
    """
    cluster = client.cluster

    def work() -> dict[str, int]:
        known = {name: len(found.partitions) for name, found in cluster.topics.items()}
        return known if topic is None else {topic: known.get(topic, 0)}

    counts: dict[str, int] = client.asked("metadata", (), work, timeout)
    found: Any = ClusterMetadata()
    for broker in cluster.brokers:
        if broker.is_up:
            host: Any = BrokerMetadata()
            host.id, host.host, host.port = broker.number, "simulated", 9091 + broker.number
            found.brokers[broker.number] = host
    for name, count in counts.items():
        known: Any = TopicMetadata()
        found.topics[name] = known
        known.topic = name
        known.error = None if count else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "simulated: no such topic")
        for number in range(count):
            known.partitions[number] = one = PartitionMetadata()
            one.id = number
    return found
