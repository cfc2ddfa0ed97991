"""Messages of Faust as our records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leftfold.ports import RawRecord

__all__ = ["bundled", "record_of"]


def record_of(message: Any) -> RawRecord:
    """The record in a message."""
    return RawRecord(
        message.topic,
        message.partition,
        message.offset,
        message.key,
        message.value,
        tuple(message.headers or ()),
        int((message.timestamp or 0) * 1000),
    )


def bundled(message: Any) -> Iterator[RawRecord]:
    """The records in a message that holds a bundle."""
    for found in message.value:
        yield RawRecord(
            found.topic,
            found.partition,
            found.offset,
            found.key,
            found.value,
            tuple(found.headers),
            found.timestamp,
        )
