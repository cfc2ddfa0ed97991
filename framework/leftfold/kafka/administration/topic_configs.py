"""How each kind of topic is configured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias

__all__ = ["COMMANDS", "DEAD", "EVENTS", "REPLIES", "STATE", "TIME", "TopicConfig", "dead_commands"]

TopicConfig: TypeAlias = Mapping[str, str]

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_SMALL_SEGMENT = str(64 * 1024 * 1024)

# Brokers then weigh what records weigh when they are unpacked. Packed, a record of hundreds of MB is of a few kB.
_WEIGHED: TopicConfig = {"compression.type": "uncompressed"}

EVENTS: TopicConfig = MappingProxyType(
    {
        **_WEIGHED,
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    }
)
"""The log: nothing is ever deleted, and time is when the broker appended."""

# The active segment is never cleaned, so segments are small: a restore reads at most one of them uncompacted.
STATE: TopicConfig = MappingProxyType(
    {
        **_WEIGHED,
        "cleanup.policy": "compact",
        "segment.ms": str(10 * _MINUTE),
        "segment.bytes": _SMALL_SEGMENT,
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": str(_HOUR),
        "delete.retention.ms": str(_DAY),
    }
)
"""The last state record of every stream."""

COMMANDS: TopicConfig = MappingProxyType(
    {
        **_WEIGHED,
        "cleanup.policy": "delete",
        "retention.ms": str(7 * _DAY),
        "message.timestamp.type": "LogAppendTime",
    }
)
"""Commands that were decided are kept a week for the curious; their time is the broker's, which no client can set."""

DEAD: TopicConfig = MappingProxyType(
    {**_WEIGHED, "cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
)
"""What processes and reactions could not take stays until somebody has looked at it."""


def dead_commands(kept: timedelta | None) -> TopicConfig:
    """How dead letters of commands are kept, None = for ever: whoever may send commands may fill their topic."""
    lasting = "-1" if kept is None else str(kept // timedelta(milliseconds=1))
    return MappingProxyType({**DEAD, "retention.ms": lasting})


REPLIES: TopicConfig = MappingProxyType(
    {
        **_WEIGHED,
        "cleanup.policy": "delete",
        "retention.ms": str(10 * _MINUTE),
        "segment.ms": str(10 * _MINUTE),
        "segment.bytes": _SMALL_SEGMENT,
    }
)
"""Answers that nobody waits for any more are of no use to anybody."""

TIME: TopicConfig = MappingProxyType({**REPLIES, "message.timestamp.type": "LogAppendTime"})
"""What routers say of time, which counts no further than the broker's own."""
