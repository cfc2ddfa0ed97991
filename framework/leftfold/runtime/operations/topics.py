"""Topics of Apps as operators see them: what they hold, and settings that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import topics_of
from leftfold.model.app import App
from leftfold.runtime.connect import kafka_settings

__all__ = ["TopicRow", "known_settings", "topic_rows"]


def known_settings(cluster: ClusterAdmin, topics: Iterable[str]) -> tuple[dict[str, dict[str, str]], str]:
    """The settings of those topics whose settings this login may read, and a warning that names the others, or ''."""
    wanted, found, refused, why = list(topics), dict[str, dict[str, str]](), list[str](), ""
    try:
        return cluster.configs(wanted), ""
    except ConfigurationError:  # of one of them at least
        for topic in wanted:
            try:
                found |= cluster.configs([topic])
            except ConfigurationError as error:
                refused.append(topic)
                why = str(error)
    return found, (
        f"the settings of {', '.join(refused)} cannot be seen: {why}; allow this login DescribeConfigs there, as these "
        f"lines do: leftfold topics acl console"
    )


@dataclass(frozen=True)
class TopicRow:
    """A topic of an App.

    Args:
        partitions: None = the topic does not exist yet. wanted: as the App says; None = any number.
        offsets: how many it holds now, transaction markers included. deleted: how many it held before.
        replicas: of the partition with the fewest. retention: in ms; -1 = for ever; None = this login may not see it,
            nor `cleanup` and other settings.
        differences: name, value and wanted value of settings that differ from those of a new topic, and of `replicas`
            that are fewer.
    """

    app: str
    name: str
    partitions: int | None
    wanted: int | None
    offsets: int = 0
    deleted: int = 0
    replicas: int = 0
    cleanup: str = ""
    retention: int | None = -1
    differences: tuple[tuple[str, str, str], ...] = ()


def topic_rows(apps: Iterable[App], kafka: str | None) -> tuple[list[TopicRow], str]:
    """A row for each topic of these Apps, created or not; and a warning if settings of some cannot be seen.

    Raises:
        InfrastructureError: no broker answers.
    """
    wanted = [(app.name, topic) for app in apps for topic in topics_of(app)]
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        counts = cluster.partition_counts(topic.name for _, topic in wanted)
        replicas, most = cluster.replica_counts(counts), cluster.wanted_replicas()
        configs, warning = known_settings(cluster, counts)
        starts, ends = cluster.starts(counts).offsets, cluster.ends(counts).offsets
    rows = []
    for app, topic in wanted:
        name, count = topic.name, topic.partitions if topic.fixed else None
        if name not in counts:
            rows.append(TopicRow(app, name, None, count))
            continue
        deleted, config = sum(starts[name].values()), configs.get(name)
        about = app, name, counts[name], count, sum(ends[name].values()) - deleted, deleted, replicas[name]
        fewer = [("replicas", str(replicas[name]), str(most))] if replicas[name] < most else []
        if config is None:
            rows.append(TopicRow(*about, "unknown", None, tuple(fewer)))
            continue
        differences = [(key, config.get(key, ""), value) for key, value in topic.config.items()]
        found = *fewer, *(one for one in differences if one[1] != one[2])
        rows.append(TopicRow(*about, config["cleanup.policy"], int(config["retention.ms"]), found))
    return rows, warning
