"""Settings of the clients of conformance scripts, the same for both worlds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["consumer_config", "producer_config"]


def producer_config(address: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a producer; `_` in the names of `config` stands for a dot."""
    return {
        "bootstrap.servers": address,
        "log_level": 0,
        "linger.ms": 0,
        "retry.backoff.ms": 20,
        "topic.metadata.propagation.max.ms": 1000,
        **_named(config),
    }


def consumer_config(address: str, group: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a consumer."""
    return {
        "bootstrap.servers": address,
        "log_level": 0,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
        "heartbeat.interval.ms": 200,
        "session.timeout.ms": 45_000,
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        **_named(config),
    }


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    as_it_is = ("_cb", "log_level")
    return {name if name.endswith(as_it_is) else name.replace("_", "."): value for name, value in config.items()}
