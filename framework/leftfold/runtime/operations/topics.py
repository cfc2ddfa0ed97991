"""Topics of Apps as operators see them: what they hold, and settings that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import topics_of
from leftfold.model.app import App
from leftfold.runtime.connect import kafka_settings

__all__ = ["TopicRow", "topic_rows"]


@dataclass(frozen=True)
class TopicRow:
    """A topic of an App.

    Args:
        partitions: None = the topic does not exist yet. wanted: as the App says; None = any number.
        offsets: how many it holds now, transaction markers included. deleted: how many it held before.
        retention: in ms; -1 = for ever.
        differences: name, value and wanted value of settings that differ from those of a new topic.
    """

    app: str
    name: str
    partitions: int | None
    wanted: int | None
    offsets: int = 0
    deleted: int = 0
    cleanup: str = ""
    retention: int = -1
    differences: tuple[tuple[str, str, str], ...] = ()


def topic_rows(apps: Iterable[App], kafka: str | None) -> list[TopicRow]:
    """A row for each topic of these Apps, created or not.

    Raises:
        InfrastructureError: no broker answers.
    """
    wanted = [(app.name, topic) for app in apps for topic in topics_of(app)]
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        counts = cluster.partition_counts(topic.name for _, topic in wanted)
        configs = cluster.configs(counts)
        starts, ends = cluster.starts(counts).offsets, cluster.ends(counts).offsets
    rows = []
    for app, topic in wanted:
        name, count = topic.name, topic.partitions if topic.fixed else None
        if name not in counts:
            rows.append(TopicRow(app, name, None, count))
            continue
        config, deleted = configs[name], sum(starts[name].values())
        differences = [(key, config.get(key, ""), value) for key, value in topic.config.items()]
        found = tuple(one for one in differences if one[1] != one[2])
        rows.append(
            TopicRow(
                app,
                name,
                counts[name],
                count,
                sum(ends[name].values()) - deleted,
                deleted,
                config["cleanup.policy"],
                int(config["retention.ms"]),
                found,
            )
        )
    return rows
