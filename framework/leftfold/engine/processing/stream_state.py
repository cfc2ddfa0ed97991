"""The state of a stream: version, state and recent answers; its state record, and the changelog checkpoint `@`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

from leftfold.errors import ContractError
from leftfold.model.state_codec import Storage
from leftfold.ports.message_codec import JSON

__all__ = [
    "MARK", "SETTLED", "SETTLING", "ChangelogCheckpoint", "FirstState", "Stream", "StreamCodec", "answer",
    "answers_in", "is_state", "state_key",
]  # fmt: skip


_STATE = re.compile(rb'\{"version":[0-9]{1,18},"state":')
_MOST = 1 << 63
"""Beyond the offsets of any topic."""
MARK = b"@"
"""The key of changelog checkpoints, which no stream may have."""

SETTLED = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.settled.v1"), ("content-type", JSON)]
"""The headers of a record that ends a transaction that a broker forgot. Its key is `@`, and it is no event."""
SETTLING = [("ce_specversion", b"1.0"), ("ce_type", b"leftfold.settling.v1"), ("content-type", JSON)]
"""The headers of a note among the events, also with the key `@`: what a transaction wrote is committed, which a broker
forgot and which is about to be ended. Its value is `{topic: [first, end, topic id]}`."""


def state_key(key: bytes) -> str:
    """The stream of a state record; '' when the record has none."""
    try:
        return "" if key == MARK else key.decode()
    except UnicodeDecodeError:
        return ""


def is_state(value: bytes) -> bool:
    """Whether a value may be the state record of a stream or an instance, by its beginning and end."""
    return _STATE.match(value) is not None and value.endswith(b"}")


@dataclass(frozen=True)
class ChangelogCheckpoint:
    """The changelog checkpoint, record `@` of a state partition: how far its commands and events were known.

    `commands` counts the batch of the checkpoint, `events` only those before it. `start` is where the state partition
    began then: when it begins later by now, records that `events` counts no longer exist. `topics` are the ids of the
    topics that these offsets belong to, by name; older records have none. `per_command` is how many bytes of state a
    command has cost lately, `answers_dropped` how many answers ever left a key's memory before their time: both as of
    the transaction before.
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

    def moved(self, commands: int, events: int, writer: str, start: int, ids: Mapping[str, str]) -> ChangelogCheckpoint:
        """The checkpoint of the next transaction; topic ids that its login may not read are kept."""
        topics = {**self.topics, **{topic: id_ for topic, id_ in ids.items() if id_}}
        return replace(self, commands=commands, events=events, writer=writer, start=start, topics=topics)

    def is_of(self, topic: str, ids: Mapping[str, str]) -> bool:
        """Whether this is about the topic that has the name now, as far as both ids are known."""
        known, now = self.topics.get(topic, ""), ids.get(topic, "")
        return not known or not now or known == now

    @classmethod
    def decode(cls, value: bytes) -> ChangelogCheckpoint:
        """The checkpoint in a record."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: found for name, found in json.loads(value).items() if name in known})

    @classmethod
    def read(cls, value: bytes) -> ChangelogCheckpoint | None:
        """The checkpoint in a record from an untrusted writer; None when the record holds none."""
        try:
            found = cls.decode(value)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        counts = (found.commands, found.events, found.start, found.per_command, found.answers_dropped)
        texts = isinstance(found.topics, dict) and (found.writer, *found.topics.values())
        if not texts or not all(isinstance(text, str) for text in texts):
            return None
        return found if all(type(count) is int and 0 <= count < _MOST for count in counts) else None


S = TypeVar("S")
_HEAD = b'{"version":'
KEEP, KEEP_SECONDS, KEEP_MOST, KEEP_BYTES = 32, 60.0, 1000, 131_072


class RememberedAnswer(NamedTuple):
    """The answer to a command id: `events` written from version `first` on, or an `error` as in a nack.

    `seen` is when it was given, in seconds since 1970, and not before the broker appended the command; `encoded` is its
    part of the state record.
    """

    digest: str
    first: int
    events: int
    error: dict[str, Any] | None
    seen: float
    encoded: bytes


def answer(
    id_: str, digest: str, first: int, events: int, error: dict[str, Any] | None, seen: float
) -> RememberedAnswer:
    """An answer with its encoded form, `[command id, body digest, first version, n | error]`."""
    if error is None and id_.isascii() and id_.isprintable() and '"' not in id_ and "\\" not in id_:
        encoded = f'["{id_}","{digest}",{first},{events}]'.encode()
    else:
        encoded = json.dumps([id_, digest, first, events if error is None else error], separators=(",", ":")).encode()
    return RememberedAnswer(digest, first, events, error, seen, encoded)


@dataclass(slots=True)
class Stream(Generic[S]):
    """One stream: `answered` by command id, oldest first; `origins` the highest (offset, index) per origin.

    `weight` is the size of the encoded answers in bytes, -1 before it is first computed.
    """

    version: int
    state: S
    answered: dict[str, RememberedAnswer]
    origins: dict[str, tuple[int, int]]
    weight: int = field(default=-1, compare=False)

    def copy(self) -> Stream[S]:
        """A copy that may change without changing this one."""
        return Stream(self.version, self.state, dict(self.answered), dict(self.origins), self.weight)

    def remember(self, id_: str, given: RememberedAnswer, now: float | None = None) -> int:
        """Adds an answer and drops those outside the window; returns how many recent ones were dropped.

        Ages are measured at `now`, when the broker appended the command, or else when the answer was given: after an
        outage, repeated commands that were appended before an answer are still to come. The window has a limit in
        bytes, too: each transaction writes all of it again.
        """
        if self.weight < 0 or id_ in self.answered:
            self.answered[id_] = given
            self.weight = sum(len(one.encoded) for one in self.answered.values())
        else:
            self.answered[id_] = given
            self.weight += len(given.encoded)
        dropped, at = 0, given.seen if now is None else now
        while len(self.answered) > KEEP:
            oldest = next(iter(self.answered))
            young = at - self.answered[oldest].seen <= KEEP_SECONDS
            if young and len(self.answered) <= KEEP_MOST and self.weight <= KEEP_BYTES:
                break
            self.weight -= len(self.answered.pop(oldest).encoded)
            dropped += young
        return dropped

    def shed(self, excess: int) -> int:
        """Drops the oldest answers, never the last, until the record is `excess` bytes lighter; returns how many."""
        before = len(self.answered)
        while excess > 0 and len(self.answered) > 1:
            excess -= len(self.answered.pop(next(iter(self.answered))).encoded) + 1
        self.weight = -1
        return before - len(self.answered)


class FirstState(Generic[S]):
    """The initial state of a definition: one object for all streams, or one for each if it may hold mappings.

    A mapping can be changed in place by user code; the change would be seen in all other streams.
    """

    def __init__(self, storage: Storage[S], initial: S) -> None:
        self._storage, self._initial = storage, initial
        may_hold_mappings = "Properties'" in str(storage.schema)  # additionalProperties or patternProperties
        self._data = storage.encode(initial) if may_hold_mappings else None

    def new(self) -> S:
        """The state of a new stream or instance."""
        return self._initial if self._data is None else self._storage.decode(self._data)


class StreamCodec(Generic[S]):
    """Reads and writes state records, `{version, state, answered, origins}`."""

    def __init__(self, storage: Storage[S], initial: S) -> None:
        self._storage, self._initial = storage, FirstState(storage, initial)

    def new(self) -> Stream[S]:
        """A stream before its first event."""
        return Stream(0, self._initial.new(), {}, {})

    def encode(self, stream: Stream[S]) -> bytes:
        """The state record's value."""
        return _HEAD + b'%d,"state":%b,"answered":[%b],"origins":%b}' % (
            stream.version,
            self._storage.encode_checked(stream.state),
            b",".join([a.encoded for a in stream.answered.values()]),
            json.dumps(stream.origins, separators=(",", ":")).encode() if stream.origins else b"{}",
        )

    @staticmethod
    def version(value: bytes) -> int:
        """The version in a record, without decoding the rest."""
        return int(value[len(_HEAD) : value.index(b",")])

    def decode(self, value: bytes, seen: float) -> Stream[S]:
        """The stream in a record; its answers count as given at `seen`.

        Raises:
            ContractError: the record is not one that `encode` wrote for this state type.
        """
        try:
            fields = json.loads(value)
            version, state = int(fields["version"]), json.dumps(fields["state"])
            answered = answers_in(fields, seen)
            origins = {source: (offset, index) for source, (offset, index) in fields["origins"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ContractError(f"unreadable state record {value[:80]!r}: {error!r}") from error
        return Stream(version, self._storage.decode(state), answered, origins)


def answers_in(fields: Mapping[str, Any], seen: float) -> dict[str, RememberedAnswer]:
    """The answers in the fields of a state record, by command id; they count as given at `seen`."""
    answered = fields["answered"]
    return {id_: answer(id_, digest, first, *_outcome(outcome), seen) for id_, digest, first, outcome in answered}


def _outcome(outcome: int | dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    return (outcome, None) if isinstance(outcome, int) else (0, outcome)
