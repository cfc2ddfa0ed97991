"""Messages of Faust as our records."""

from __future__ import annotations

from typing import Any

from leftfold.ports import RawRecord

__all__ = ["record_of"]


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
