"""Which archive a command means: the one it is told, the environment's, or the project's."""

from __future__ import annotations

from typing import Any

from leftfold.cli.failures import Usage, unknown
from leftfold.cli.project import find_project
from leftfold.connection import kafka_settings, ring
from leftfold.kafka.settings import KafkaSettings
from leftfold.names import events
from leftfold.wholelog import archive_dir

__all__ = ["archive_needed", "archive_of", "topic_in", "topic_of"]


def archive_of(given: str | None) -> str:
    """The archive, '' when nobody names one; a path in pyproject.toml is relative to that file."""
    return archive_dir(given, default=find_project().archive)


def archive_needed(given: str | None, option: str) -> str:
    """The archive, which must be named.

    Raises:
        Usage: nobody says where it is.
    """
    found = archive_of(given)
    if not found:
        raise Usage(
            f"where is the archive? say {option} DIR, set LEFTFOLD_ARCHIVE_DIR, or write archive = 'DIR' under "
            f"[tool.leftfold] in pyproject.toml"
        )
    return found


def topic_of(category: str, kafka: str | None) -> tuple[KafkaSettings, str]:
    """The events topic of a category that the cluster has.

    Raises:
        Usage: it has none such.
    """
    settings = kafka_settings(kafka)
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        topic, _ = topic_in(cluster, category)
    return settings, topic


def topic_in(cluster: Any, category: str) -> tuple[str, int]:
    """The events topic of a category, and how many partitions it has.

    Raises:
        Usage: the cluster has none such.
        ConfigurationError: the login may not see it.
    """
    topic = events(category)
    # Listing hides what a login may not see; asked by name, the broker says so.
    count: int | None = cluster.partition_counts([topic]).get(topic)
    if count is None:
        known = (name.removesuffix(".events") for name in cluster.topics() if name.endswith(".events"))
        raise unknown("category in the log called", category, known)
    return topic, count
