"""Waiting until nothing is open in a topic, since a commit returns before its markers are written."""

from __future__ import annotations

from contextlib import closing

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from tests.waiting import wait_until

__all__ = ["wait_settled"]


def wait_settled(kafka: KafkaSettings, topic: str) -> None:
    """Waits until every transaction on a topic has ended on all of its partitions."""
    with ClusterAdmin(kafka) as cluster, closing(KafkaBulkLog(kafka)) as log:
        wait_until(
            lambda: log.stable_ends([topic]) == cluster.ends([topic]), f"every transaction on {topic} to be over"
        )
