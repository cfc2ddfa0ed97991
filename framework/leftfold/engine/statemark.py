"""The `@` record of a state partition: the first record that a transaction writes there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from leftfold.codec import JSON

__all__ = ["MARK", "SETTLED", "StateMark"]

MARK = b"@"
"""A key that no stream has."""

SETTLED = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.settled.v1"), ("content-type", JSON)]
"""The headers of what ends a transaction that a broker forgot: a record with the key `@` that is no event."""


@dataclass(frozen=True)
class StateMark:
    """The `@` record of a state partition: how far its commands and, before that batch, its events were known.

    `start` is where the state partition began then: when it begins later by now, records are gone that `events` counts.
    `topics` are the ids of the topics that these offsets belong to, by name; older records have none.
    `per_command` is how many bytes of state a command has cost lately, `answers_dropped` how many answers ever left a
    key's memory before their time: both as of the transaction before.
    """

    commands: int = 0
    events: int = 0
    writer: str = ""
    start: int = 0
    topics: Mapping[str, str] = field(default_factory=dict)
    per_command: int = 0
    answers_dropped: int = 0

    def encode(self) -> bytes:
        """The record's value."""
        return json.dumps(vars(self), separators=(",", ":")).encode()

    def is_of(self, topic: str, ids: Mapping[str, str]) -> bool:
        """Whether this is about the topic that bears the name now, as far as both ids are known."""
        known, now = self.topics.get(topic, ""), ids.get(topic, "")
        return not known or not now or known == now

    @classmethod
    def decode(cls, value: bytes) -> StateMark:
        """The mark in a record."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: found for name, found in json.loads(value).items() if name in known})
