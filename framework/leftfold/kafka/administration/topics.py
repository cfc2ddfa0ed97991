"""The Kafka topics of an App: creates them, and refuses those whose configuration breaks a guarantee."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App

__all__ = ["STATE", "Topic", "dead_commands", "ensure", "make", "topics_of"]

TopicConfig: TypeAlias = Mapping[str, str]

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_SMALL_SEGMENT = str(64 * 1024 * 1024)

# Brokers then limit the uncompressed size of records. Compressed, a record of hundreds of MB may take a few kB.
_UNCOMPRESSED: TopicConfig = {"compression.type": "uncompressed"}

EVENTS: TopicConfig = {
    **_UNCOMPRESSED,
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
}
"""Event topics: nothing is ever deleted, and record time is the broker's append time."""

# The active segment is never compacted, so segments are small: a restore reads at most one of them uncompacted.
STATE: TopicConfig = {
    **_UNCOMPRESSED,
    "cleanup.policy": "compact",
    "segment.ms": str(10 * _MINUTE),
    "segment.bytes": _SMALL_SEGMENT,
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(_HOUR),
    "delete.retention.ms": str(_DAY),
}
"""State topics: compacted, with the last state record of every stream."""

COMMANDS: TopicConfig = {
    **_UNCOMPRESSED,
    "cleanup.policy": "delete",
    "retention.ms": str(7 * _DAY),
    "message.timestamp.type": "LogAppendTime",
}
"""Command topics: decided commands are kept for a week; record time is the broker's, which no client can set."""

DEAD: TopicConfig = {**_UNCOMPRESSED, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Dead-letter topics of processes and reactions: records stay until an operator has handled them."""


def dead_commands(kept: timedelta | None) -> TopicConfig:
    """The configuration of a command dead-letter topic, kept for a time, since clients can fill it; None = for ever."""
    lasting = "-1" if kept is None else str(kept // timedelta(milliseconds=1))
    return {**DEAD, "retention.ms": lasting}


REPLIES: TopicConfig = {
    **_UNCOMPRESSED,
    "cleanup.policy": "delete",
    "retention.ms": str(10 * _MINUTE),
    "segment.ms": str(10 * _MINUTE),
    "segment.bytes": _SMALL_SEGMENT,
}
"""Reply topics: answers are deleted after ten minutes, when no client waits for them."""

TIME: TopicConfig = {**REPLIES, "message.timestamp.type": "LogAppendTime"}
"""Watermark topics of routers; a watermark counts no further than the broker's append time."""

_SAFE = 3
# Settings that guarantees depend on; the operator may change the others.
_STRICT = frozenset({"cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type"})
_UNCHECKED = (REPLIES, TIME)
_DATED = "message.timestamp.type"
_LEAST_MS = 24 * 3_600_000
"""The minimum retention of commands in ms, so that workers that were stopped can still take them.

It also holds for commands from processes, and for dead letters, so that an operator can look at them.
"""


@dataclass(frozen=True)
class Topic:
    """A topic that an App needs; if `fixed` is False, any partition count is accepted."""

    name: str
    partitions: int
    config: TopicConfig
    fixed: bool = True


def topics_of(app: App) -> list[Topic]:
    """The topics that an App owns."""
    count = app.partitions
    found = [Topic(names.replies(app.name), count, REPLIES, fixed=False)]
    for decider in app.deciders:
        category = decider.name
        found += [
            Topic(names.commands(category), count, COMMANDS),
            Topic(names.events(category), count, EVENTS),
            Topic(names.state(category, decider.version), count, STATE),
            Topic(names.dead(category), count, dead_commands(app.dead_retention)),
        ]
    for process in app.processes:
        name = process.name
        found += [
            Topic(names.commands(name), count, EVENTS),
            Topic(names.state(name, process.version), count, STATE),
            Topic(names.dead(name), count, DEAD),
            Topic(names.time(name), 1, TIME),
        ]
    for reaction in app.reactions:
        found += [Topic(names.dead(reaction.name), count, DEAD), Topic(names.begun(reaction.name), 1, STATE)]
    return found


def ensure(app: App, settings: KafkaSettings, *, timeout: float = 30.0) -> dict[str, int]:
    """Creates missing topics of an App and checks the existing ones; returns the partition counts of its topics.

    Raises:
        ConfigurationError: a topic has a different partition count than the App, or is configured to lose records.
        InfrastructureError: a category that this App only reads has no log, or no broker answers.
    """
    wanted = topics_of(app)
    read = [names.events(category) for category in sorted(_read_only(app))]
    with ClusterAdmin(settings) as cluster:
        there = cluster.partition_counts([topic.name for topic in wanted] + read)
        missing = [topic for topic in wanted if topic.name not in there]
        if missing:
            # Own topics come before the check of other Apps' topics: else two Apps that read each other never start.
            make(cluster, missing)
            there |= _wait_made(cluster, [topic.name for topic in wanted], timeout)
        _check_read(app, read, there)
        _date(cluster, [topic.name for topic in wanted if topic.config in (COMMANDS, TIME)])
        _check(app, wanted, there, cluster.configs(t.name for t in wanted if t.config not in _UNCHECKED))
    return there


def _read_only(app: App) -> set[str]:
    owned = {decider.name for decider in app.deciders}
    views = {category for view in app.views for category in view.categories}
    views = views.union(*(process.categories for process in app.processes))
    views = views.union(*(stream.categories for stream in app.streams))
    return views.union(*(reaction.categories for reaction in app.reactions)) - owned


def make(cluster: ClusterAdmin, missing: Iterable[Topic]) -> None:
    """Creates topics."""
    replication = cluster.wanted_replicas()
    # With three replicas one broker may be down; two have every write before it is acknowledged.
    safety = {"min.insync.replicas": "2"} if replication >= _SAFE else {}
    for topic in missing:
        cluster.create(topic.name, topic.partitions, replication, {**topic.config, **safety})


def _date(cluster: ClusterAdmin, topics: list[str]) -> None:
    """Sets LogAppendTime on topics that earlier versions created without it; existing records do not change."""
    for topic, config in cluster.configs(topics).items():
        if config[_DATED] != COMMANDS[_DATED]:
            try:
                cluster.set_configs(topic, {_DATED: COMMANDS[_DATED]})
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"topic {topic} has {_DATED}={config[_DATED]}, and must have {_DATED}={COMMANDS[_DATED]}, which "
                    f"this user may not set; set it with kafka-configs --alter"
                ) from error


def _wait_made(cluster: ClusterAdmin, topics: list[str], timeout: float) -> dict[str, int]:
    deadline = time.monotonic() + timeout
    while True:
        there = cluster.partition_counts(topics)
        absent = [name for name in topics if not there.get(name)]
        if not absent:
            return there
        if time.monotonic() > deadline:
            raise InfrastructureError(f"{', '.join(absent)}: made, but not seen by the brokers within {timeout:g} s")
        time.sleep(0.02)


def _check_read(app: App, read: list[str], there: Mapping[str, int]) -> None:
    absent = [name for name in read if name not in there]
    if absent:
        raise InfrastructureError(
            f"app {app.name} reads {', '.join(absent)}, which no App has made yet; run the App that owns it first "
            f"(leftfold topics ensure --app package.module:app), or add its decider to this one"
        )


def _check(app: App, wanted: list[Topic], there: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]) -> None:
    dead = {names.dead(decider.name) for decider in app.deciders}
    for topic in wanted:
        count = there[topic.name]
        if topic.fixed and count != topic.partitions:
            raise ConfigurationError(
                f"topic {topic.name} has {count} partitions, but app {app.name} says partitions={topic.partitions}; "
                f"keys would move between them. Say partitions={count} in the App: moving streams to another count "
                f"is a migration, which this version does not have"
            )
        if topic.config is COMMANDS or topic.name in dead:
            lost = "before an operator has looked at them" if topic.name in dead else "before they are decided"
            _check_lasting(topic.name, configs[topic.name], lost)
            continue
        for name, value in topic.config.items():
            found = configs.get(topic.name, {}).get(name, value)
            if name in _STRICT and found != value:
                raise ConfigurationError(
                    f"topic {topic.name} has {name}={found}, and must have {name}={value}: with any other value "
                    f"records that state is folded from are lost or misdated; set it with kafka-configs --alter"
                )


def _check_lasting(topic: str, config: Mapping[str, str], lost: str) -> None:
    """Checks that a topic retains commands long enough; a process never sends its commands twice."""
    wanted = {"cleanup.policy": "delete", "retention.bytes": "-1"}
    wrong = [f"{name}={config[name]}" for name, value in wanted.items() if config[name] != value]
    wrong += [f"retention.ms={ms}" for ms in [int(config["retention.ms"])] if 0 <= ms < _LEAST_MS]
    if wrong:
        raise ConfigurationError(
            f"topic {topic} has {', '.join(wrong)}: commands could go {lost}. It must have "
            f"cleanup.policy=delete, retention.bytes=-1 and retention.ms=-1 or {_LEAST_MS} at least; set it with "
            f"kafka-configs --alter"
        )
