"""The configuration of each kind of Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias

__all__ = ["COMMANDS", "DEAD", "EVENTS", "REPLIES", "STATE", "TIME", "TopicConfig", "dead_commands"]

TopicConfig: TypeAlias = Mapping[str, str]

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_SMALL_SEGMENT = str(64 * 1024 * 1024)

# Brokers then limit the uncompressed size of records. Compressed, a record of hundreds of MB may take a few kB.
_UNCOMPRESSED: TopicConfig = {"compression.type": "uncompressed"}

EVENTS: TopicConfig = MappingProxyType(
    {
        **_UNCOMPRESSED,
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    }
)
"""Event topics: nothing is ever deleted, and record time is the broker's append time."""

# The active segment is never compacted, so segments are small: a restore reads at most one of them uncompacted.
STATE: TopicConfig = MappingProxyType(
    {
        **_UNCOMPRESSED,
        "cleanup.policy": "compact",
        "segment.ms": str(10 * _MINUTE),
        "segment.bytes": _SMALL_SEGMENT,
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": str(_HOUR),
        "delete.retention.ms": str(_DAY),
    }
)
"""State topics: compacted, with the last state record of every stream."""

COMMANDS: TopicConfig = MappingProxyType(
    {
        **_UNCOMPRESSED,
        "cleanup.policy": "delete",
        "retention.ms": str(7 * _DAY),
        "message.timestamp.type": "LogAppendTime",
    }
)
"""Command topics: decided commands are kept for a week; record time is the broker's, which no client can set."""

DEAD: TopicConfig = MappingProxyType(
    {**_UNCOMPRESSED, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
)
"""Dead-letter topics of processes and reactions: records stay until an operator has handled them."""


def dead_commands(kept: timedelta | None) -> TopicConfig:
    """The configuration of a command dead-letter topic, kept for a time, since clients can fill it; None = for ever."""
    lasting = "-1" if kept is None else str(kept // timedelta(milliseconds=1))
    return MappingProxyType({**DEAD, "retention.ms": lasting})


REPLIES: TopicConfig = MappingProxyType(
    {
        **_UNCOMPRESSED,
        "cleanup.policy": "delete",
        "retention.ms": str(10 * _MINUTE),
        "segment.ms": str(10 * _MINUTE),
        "segment.bytes": _SMALL_SEGMENT,
    }
)
"""Reply topics: answers are deleted after ten minutes, when no client waits for them."""

TIME: TopicConfig = MappingProxyType({**REPLIES, "message.timestamp.type": "LogAppendTime"})
"""Watermark topics of routers; a watermark counts no further than the broker's append time."""
