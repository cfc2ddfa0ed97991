"""The `@` record of a state partition: the first record that a transaction writes there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["MARK", "StateMark"]

MARK = b"@"


@dataclass(frozen=True)
class StateMark:
    """The `@` record of a state partition: how far its commands and, before that batch, its events were known."""

    commands: int = 0
    events: int = 0
    writer: str = ""

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> StateMark:
        """The mark in a record."""
        return cls(**json.loads(value))
