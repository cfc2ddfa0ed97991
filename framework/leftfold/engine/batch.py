"""What one batch of commands wants written, as values: nothing of it has happened until it is committed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from leftfold.errors import LeftfoldError
from leftfold.ports import Headers

__all__ = ["Batch", "Failure", "Outgoing", "Reply", "Write"]

HeaderList: TypeAlias = list[tuple[str, bytes]]


class Outgoing(NamedTuple):
    """A record to be written to a partition of the topic that its list stands for."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Reply(NamedTuple):
    """An answer owed to a client once the batch is committed; `error` is a nack's value, None for an ack."""

    to: bytes
    command_id: bytes
    partition: int
    version: int
    events: int
    error: dict[str, Any] | None


@dataclass(slots=True)
class Failure:
    """An exception of user code: what the first command of its kind was answered, and the traceback."""

    why: str
    trace: str
    times: int = 1


Write: TypeAlias = tuple[str, Sequence[Outgoing]]
"""Records for a topic."""


@dataclass(slots=True)
class Batch:
    """The writes of one transaction, and the streams as they are once it is committed.

    `sent` holds, by topic, commands of processes and answers to them; `changed` names the streams by partition and key
    whose record must be written. `failures` are exceptions of user code by kind, `answers_dropped` says by partition
    how many answers left a key's memory before their time.
    """

    events: list[Outgoing] = field(default_factory=list)
    states: list[Outgoing] = field(default_factory=list)
    dead: list[Outgoing] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    sent: dict[str, list[Outgoing]] = field(default_factory=dict)
    streams: dict[int, dict[str, Any]] = field(default_factory=dict)
    changed: set[tuple[int, str]] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    answers_dropped: dict[int, int] = field(default_factory=dict)

    def drop_answers(self, partition: int, count: int) -> None:
        """Notes that answers left a key's memory before their time."""
        if count:
            self.answers_dropped[partition] = self.answers_dropped.get(partition, 0) + count

    def fail(self, error: LeftfoldError) -> None:
        """Notes that user code failed, for the operator; those of one line and type of exception once."""
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)
        kind = f"{type(cause).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else str(type(cause))
        if kind in self.failures:
            self.failures[kind].times += 1
        else:
            self.failures[kind] = Failure(str(error), "".join(traceback.format_exception(cause)))

    def writes(self, events: str, state: str, dead: str) -> Iterator[Write]:
        """What is written, by topic, given the names of one's own."""
        yield events, self.events
        yield state, self.states
        yield dead, self.dead
        yield from self.sent.items()
