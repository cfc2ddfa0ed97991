"""The output of one batch of commands: records, answers, and dead letters with the reason of the failure."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from leftfold.errors import ContractError, LeftfoldError
from leftfold.model import keys as names
from leftfold.model.position import RecordAddress
from leftfold.model.state_codec import number_in
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import Headers, RawRecord
from leftfold.safety import shown, veiled

__all__ = [
    "LOOKED_AT", "ROUTER", "Batch", "Letter", "Outgoing", "Reply", "Write", "dead_letter", "handled_marker",
    "letters_in", "looked_at", "offset_in", "reason_of", "sent_again", "skip_marker",
]  # fmt: skip


HeaderList: TypeAlias = list[tuple[str, bytes]]


class Outgoing(NamedTuple):
    """A record to write to a partition; its list stands for the topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Reply(NamedTuple):
    """An answer to a client, sent once the batch is committed; `error` is a nack's value, None for an ack.

    `digest` is that of the command: clients that share a partition of answers may have chosen one id for two commands.
    """

    to: bytes
    command_id: bytes
    partition: int
    version: int
    events: int
    error: dict[str, Any] | None
    digest: bytes = b""


@dataclass(slots=True)
class Failure:
    """An exception of user code: the answer to the first command that raised it, and the traceback."""

    why: str
    trace: str
    times: int = 1


Write: TypeAlias = tuple[str, Sequence[Outgoing]]
"""A topic with the records to write to it."""


@dataclass(slots=True)
class Batch:
    """The writes of one transaction, and the streams as they are after its commit.

    `sent` holds, by topic, commands of processes and answers to them; `changed` names the streams by partition and key
    whose state record must be written. `failures` are exceptions of user code by kind, `answers_dropped` counts by
    partition the answers that left a key's memory before their time. `traced` counts the records with a span.
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
    traced: int = 0

    def drop_answers(self, partition: int, count: int) -> None:
        """Counts answers that left a key's memory before their time."""
        if count:
            self.answers_dropped[partition] = self.answers_dropped.get(partition, 0) + count

    def weights(self) -> Counter[int]:
        """How many bytes of state it writes, by partition."""
        found = Counter[int]()
        for record in self.states:
            found[record.partition] += len(record.value or b"")
        return found

    def fail(self, error: LeftfoldError) -> None:
        """Records a failure of user code for the operator; one entry per line and type of exception."""
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)
        kind = f"{type(cause).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else str(type(cause))
        if kind in self.failures:
            self.failures[kind].times += 1
        else:
            self.failures[kind] = Failure(str(error), "".join(traceback.format_exception(cause)))

    def writes(self, events: str, state: str, dead: str) -> Iterator[Write]:
        """The writes by topic, given the names of the category's own topics."""
        yield events, self.events
        yield state, self.states
        yield dead, self.dead
        yield from self.sent.items()


_LONGEST = 2000
_FRAME = 6
"""Bytes of the two lengths that a header has besides its name and value."""
HANDLED_OFFSET, _HOW, _WHY, _BY = "dead_handled", "dead_how", "dead_reason", "dead_by"
SOURCE = "dead_source"
ROUTER = "router"
"""The value of `dead_by` for a marker that a router wrote itself, not `leftfold log skip`."""
SENDING, SENT, DISCARDED, PASSED = "sending", "sent again", "discarded", "passed over"
_LEFT_OUT = ("dead_", "origin", "deadline")
"""Prefixes of the headers that a command sent again lacks: it is late by intent."""


@dataclass(frozen=True)
class Letter:
    """A dead letter: the parked record, and how it was handled.

    Args:
        handled: '' while it waits, else `sent again` or `discarded`; `why` holds the operator and the reason.
    """

    record: RawRecord
    handled: str = ""
    why: str = ""

    @property
    def place(self) -> RecordAddress:
        """The letter's address in the topic of dead letters."""
        return self.record.address

    @property
    def reason(self) -> str:
        """Why the record could not be processed."""
        return self.text(_WHY)

    @property
    def source(self) -> str:
        """The address of the original record, `topic/partition/offset`."""
        return self.text(SOURCE)

    @property
    def is_input(self) -> bool:
        """Whether it was an input of a decider or process; what reactions park and routers skip is not sent again."""
        category = self.record.topic.removesuffix(names.dead(""))
        return self.source.startswith(f"{names.commands(category)}/")

    @property
    def is_event(self) -> bool:
        """Whether a router parked it: it could make no input of this event, whose process instance is unknown."""
        return self.text(_BY) == ROUTER

    @property
    def is_listed(self) -> bool:
        """Whether an operator has to decide how to handle it."""
        return self.is_input or self.is_event

    def text(self, name: str) -> str:
        """The value of a header, '' when absent."""
        return header(self.record.headers, name).decode(errors="replace")


def dead_letter(record: RawRecord, why: str, partition: int, room: int, *, by: str = "") -> Outgoing:
    """The dead letter with the original bytes; a reference, when a copy would need more bytes than `room`."""
    source = record.address.source.encode()
    added: HeaderList = [(_WHY, why[:_LONGEST].encode(errors="backslashreplace")), (SOURCE, source)]
    added += [(_BY, by.encode())] if by else []
    # The producer of the record must not decide how its letter is handled, nor what another letter is about.
    headers = [*((name, value) for name, value in record.headers if not name.startswith("dead_")), *added]
    weight = (
        len(record.key or b"") + len(record.value or b"") + sum(len(k) + len(v or b"") + _FRAME for k, v in headers)
    )
    if weight > room:
        key = None if record.key is None else record.key[:_LONGEST]  # the key may be the largest part
        return Outgoing(partition, key, None, [*added, ("dead_reference", b"true")])
    return Outgoing(partition, record.key, record.value, headers)


def letters_in(records: Iterable[RawRecord]) -> list[Letter]:
    """The dead letters among the records of one topic, oldest first, with the outcomes that their markers record."""
    found: dict[tuple[int, int], Letter] = {}
    for record in records:
        about = number_in(header(record.headers, HANDLED_OFFSET).decode(errors="replace"))
        if about is None:
            found[record.partition, record.offset] = Letter(record)
        elif letter := found.get((record.partition, about)):
            how = header(record.headers, _HOW).decode(errors="replace")
            if how != SENDING and not letter.handled:
                why = header(record.headers, _WHY).decode(errors="replace")
                found[record.partition, about] = replace(letter, handled=how, why=why)
    return sorted(found.values(), key=lambda letter: (letter.record.time, letter.place))


def handled_marker(letter: Letter, how: str, why: str) -> Outgoing:
    """The marker that records how a letter was handled, in the letter's partition; the letter itself stays."""
    about = (HANDLED_OFFSET, b"%d" % letter.record.offset)
    headers: HeaderList = [about, (_HOW, how.encode()), (_WHY, why[:_LONGEST].encode())]
    return Outgoing(letter.record.partition, letter.record.key, None, headers)


def skip_marker(letter: Letter, why: str) -> Outgoing:
    """The marker by which restores skip the event of a letter when they cannot fold it."""
    out = handled_marker(letter, PASSED, why)
    return out._replace(headers=[*out.headers, (SOURCE, letter.source.encode())])


def offset_in(letter: RawRecord, topic: str) -> int | None:
    """The offset of the record that a letter of the same partition number is about; None = of another topic.

    Args:
        letter: a dead letter, or a marker that names a letter's record.
    """
    place, _, offset = header(letter.headers, SOURCE).decode(errors="replace").rpartition("/")
    return number_in(offset) if place == f"{topic}/{letter.partition}" else None


def sent_again(original: RawRecord, partition: int, *, id_: str = "", origin: str = "") -> Outgoing:
    """The command or input of a letter as a new record, without the headers that belong to one sending.

    Args:
        original: as it was sent.
        id_: another id than its own; not for a command of a process, which knows the answer by the id.
        origin: its new source, for an input: the old source already counts as processed.
    """
    # A process still waits for its answer, and takes one only; a client has stopped waiting.
    is_awaited = bool(header(original.headers, "reply_key"))
    left_out, id_ = (_LEFT_OUT, "") if is_awaited else ((*_LEFT_OUT, "reply_"), id_)
    headers: HeaderList = [
        (name, id_.encode() if id_ and name == "ce_id" else value or b"")
        for name, value in original.headers
        if not name.startswith(left_out)
    ]
    if origin:
        headers.append(("origin", origin.encode()))
    return Outgoing(partition, original.key, original.value, headers)


LOOKED_AT = 8000
_WORD = re.compile(r"\S+")


def reason_of(error: BaseException) -> str:
    """The kind and the message of an error, at most 2,000 characters, without secrets."""
    text = shown(error, str)
    described = text if isinstance(error, ContractError) else ": ".join(filter(None, (type(error).__name__, text)))
    return veiled(looked_at(described))[:_LONGEST]


def looked_at(text: str) -> str:
    """The beginning of a text, so long that secrets in the part that is shown are recognised as a whole.

    A word that is cut at the end may be a URL whose login is cut, so it ends at its `://`.
    """
    start = text[:LOOKED_AT]
    if len(text) <= LOOKED_AT or text[LOOKED_AT].isspace():
        return start
    *_, last = (word.start() for word in _WORD.finditer(start + "."))
    head, url, _ = start[last:].partition("://")
    return start[:last] + head + (f"{url}***" if url else "")
