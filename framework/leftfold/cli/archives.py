"""Which archive a command means: the one it is told, the environment's, or the project's."""

from __future__ import annotations

from leftfold.cli.failures import Usage
from leftfold.cli.project import find_project
from leftfold.connection import kafka_settings, ring
from leftfold.kafka.settings import KafkaSettings
from leftfold.names import events
from leftfold.wholelog import archive_dir

__all__ = ["archive_needed", "archive_of", "topic_of"]


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
    from leftfold.cli.failures import unknown

    settings, topic = kafka_settings(kafka), events(category)
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        topics: dict[str, int] = cluster.topics()
    if topic not in topics:
        known = (name.removesuffix(".events") for name in topics if name.endswith(".events"))
        raise unknown("category in the log called", category, known)
    return settings, topic
