"""The `@` record of a state partition: the first record that a transaction writes there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from leftfold.codec import JSON

__all__ = ["MARK", "SETTLED", "StateMark", "is_state", "state_key"]

_STATE = re.compile(rb'\{"version":[0-9]{1,18},"state":')
_MOST = 1 << 63
"""Beyond the offsets of any topic."""
MARK = b"@"
"""A key that no stream has."""

SETTLED = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.settled.v1"), ("content-type", JSON)]
"""The headers of what ends a transaction that a broker forgot: a record with the key `@` that is no event."""


def state_key(key: bytes) -> str:
    """The stream that a state record is about; '' when it is about none."""
    try:
        return "" if key == MARK else key.decode()
    except UnicodeDecodeError:
        return ""


def is_state(value: bytes) -> bool:
    """Whether a record may be the state of a stream or an instance, as far as its beginning and end tell."""
    return _STATE.match(value) is not None and value.endswith(b"}")


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

    @classmethod
    def read(cls, value: bytes) -> StateMark | None:
        """The mark in a record that anybody may have written; None when it is none."""
        try:
            found = cls.decode(value)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        counts = (found.commands, found.events, found.start, found.per_command, found.answers_dropped)
        texts = isinstance(found.topics, dict) and (found.writer, *found.topics.values())
        if not texts or not all(isinstance(text, str) for text in texts):
            return None
        return found if all(type(count) is int and 0 <= count < _MOST for count in counts) else None
