"""Routing: an event becomes an input of the process instance that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leftfold import names
from leftfold.codec import MessageCodec, event_id
from leftfold.engine.batch import HeaderList, Outgoing
from leftfold.engine.dead_letter import ROUTER, dead_letter
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION
from leftfold.errors import ContractError
from leftfold.ports import RawRecord
from leftfold.printable import shown
from leftfold.process import Process

__all__ = ["MAX_BYTES", "Router", "Unusable", "unroutable"]

MAX_BYTES = 1_048_588
"""What a batch of records may weigh by default (Kafka's `message.max.bytes`)."""
_FRAME = 512
"""More than a batch of one record of ours has besides its keys, values and headers (KIP-98: varints, CRC, times)."""
_LONGEST_KEY = 1000
"""Bytes of a key; it is `reply_key` of each command that the instance sends, and deciders refuse longer headers."""
_LETTER = 10_000
"""More than the reason and the place of a dead letter weigh."""


class Unusable(ContractError):
    """An event that can be read, and whose value makes no input that could be written; the router goes on behind it.

    Args:
        why: what is wrong with the value. letter: the record of `{process}.dead` that keeps the event.
    """

    def __init__(self, why: str, letter: Outgoing) -> None:
        super().__init__(why)
        self.letter = letter


class Router:
    """Says where an event goes: a record of `{process}.commands`, or nowhere. It sends nothing.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of: the partition of `{process}.commands`, and of `{process}.dead`, that a key belongs to.
        max_bytes: what a batch of records may weigh in either topic.
    """

    def __init__(
        self,
        app: str,
        process: Process[Any, Any, Any],
        partition_of: Callable[[bytes], int],
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._process, self._partition_of, self._room = process, partition_of, max_bytes - _FRAME
        self._events: MessageCodec[Any] = MessageCodec(process.events)
        self._source = ("ce_source", f"/{app}/{process.name}".encode())

    def route(self, record: RawRecord) -> Outgoing | None:
        """The event as an input of the process, with its original bytes; None when it does not concern it.

        Raises:
            ContractError: the event cannot be read, or `correlate` fails on it: other code may route it one day.
            Unusable: a value in the event makes no input; a client may have chosen it, so it must stop no router.
        """
        given = {name: value or b"" for name, value in record.headers}
        type_ = given.get("ce_type", b"")
        if record.key == b"@" or (event := self._events.wanted(type_, record.value)) is None:
            return None
        id_ = given.get("ce_id", b"").decode(errors="replace")
        try:
            key = self._process.correlate(event)
        except Exception as error:
            failed = f"{self._process.name}.correlate failed on {shown(event)}: {shown(error)}"
            raise ContractError(failed) from error
        if key is None:
            return None
        if not isinstance(key, str):
            gave = f"{self._process.name}.correlate gave {key!r} for {event!r}"
            raise ContractError(f"{gave}; give a name or None")
        if wrong := _wrong(key):
            raise self._unusable(record, f"{self._process.name}.correlate gave {wrong}")
        raw = key.encode()
        origin = f"{record.topic}/{record.partition}/{record.offset}/0".encode()
        headers: HeaderList = [
            SPEC_VERSION,
            ("ce_id", event_id(self._process.name, key, id_, 0).encode()),
            self._source,
            ("ce_type", type_),
            ("ce_subject", raw),
            ("ce_time", given.get("ce_time", b"")),
            ("ce_correlationid", given.get("ce_correlationid") or id_.encode()),
            ("ce_causationid", id_.encode()),
            CONTENT_TYPE,
            ("origin", origin),
        ]
        if traceparent := given.get("traceparent"):
            headers.append(("traceparent", traceparent))
        if (weight := _weight(raw, record.value, headers)) > self._room:
            most = f"{self._room:,} are the most in {names.commands(self._process.name)}"
            raise self._unusable(record, f"the input weighs {weight:,} bytes, and {most}")
        return Outgoing(self._partition_of(raw), raw, record.value, headers)

    def _unusable(self, record: RawRecord, why: str) -> Unusable:
        partition = self._partition_of(record.key or b"")
        return Unusable(why, dead_letter(record, why, partition, self._room - _LETTER, by=ROUTER))


def _wrong(key: str) -> str:
    """What is wrong with the key of an instance, '' when it can be one."""
    if not key or key == "@":
        return f"{key!r}, which is no name of an instance"
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is no text"
    return f"a key of {length:,} bytes; {_LONGEST_KEY:,} are the most" if length > _LONGEST_KEY else ""


def _weight(key: bytes, value: bytes | None, headers: HeaderList) -> int:
    return len(key) + len(value or b"") + sum(len(name) + len(text) for name, text in headers)


def unroutable(process: str, record: RawRecord, error: ContractError) -> ContractError:
    """The error of a router that does not go on behind an event, with what can be done about it."""
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    return ContractError(
        f"{place} cannot be routed to {process}: {error}. Deploy code that can; where none ever will, have it passed "
        f"over: leftfold log skip {process} '{place}' --reason WHY"
    )
