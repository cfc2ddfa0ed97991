"""The headers that a processor gives to an event."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from leftfold.model.messages import Event
from leftfold.ports.codec import event_id

__all__ = ["lane_headers"]


def lane_headers(event: Event, key: str, type_: bytes, number: int, version: int) -> Any:
    """All eleven of them, for the `number`-th event of a log, which is the `version`-th of its stream."""
    command = str(UUID(int=number)).encode()
    category = type(event).__leftfold__.category
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id(category, key, command.decode(), 0).encode()),
        ("ce_source", b"/benchmarks/" + category.encode()),
        ("ce_type", type_),
        ("ce_subject", key.encode()),
        ("ce_time", b"2026-01-01T00:00:00.%06dZ" % (number % 1_000_000)),
        ("ce_sequence", b"%d" % version),
        ("ce_decision", b"1/1"),
        ("ce_correlationid", command),
        ("ce_causationid", command),
        ("content-type", b"application/json"),
    ]
