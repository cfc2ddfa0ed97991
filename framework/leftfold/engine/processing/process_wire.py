"""Inputs of processes as records: routed events, answers and timers; and the router of events to instances."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from leftfold.engine.processing.command_wire import LONGEST, PRINCIPAL, headers_of, origin_of, record_headers, small
from leftfold.engine.processing.process_instance import Due
from leftfold.errors import ContractError
from leftfold.model import keys as names
from leftfold.model.process import Process
from leftfold.model.state_codec import time_in
from leftfold.ports.message_codec import MessageCodec, event_id, header, utc_text
from leftfold.ports.outgoing import ROUTER, HeaderList, Outgoing, dead_letter
from leftfold.ports.protocols import RawRecord
from leftfold.safety import shown

__all__ = [
    "ACK", "BARRIER", "CANCEL", "DUE", "MAX_BYTES", "NACK", "NO_INPUT", "Input", "Router", "Unusable", "answer_record",
    "due_record", "invalid_key", "read_input", "unroutable",
]  # fmt: skip


_LARGE, _LONGEST = 100_000, 2000
BARRIER = b"leftfold.barrier.v1"
"""The type of a record with the key `@` that a router writes when it starts. It is no input, and no command."""
NO_INPUT: HeaderList = [("ce_specversion", b"1.0"), ("ce_type", BARRIER)]
"""The headers of such a record."""
ACK, NACK, DUE = b"leftfold.ack.v1", b"leftfold.nack.v1", b"leftfold.due.v1"
CANCEL = b"leftfold.cancel.v1"
"""The type of an operator's record that ends a timer. One that fires it early is `DUE`, as if its time had come."""


class Input(NamedTuple):
    """An input of a process as its processor reads it.

    `cause` is the id of the event, or of the command that was answered.
    """

    type: bytes
    value: bytes
    key: str
    id: str
    time: bytes
    correlation: bytes
    traceparent: bytes
    cause: str
    origin: tuple[str, int, int] | None
    principal: bytes = b""


def read_input(record: RawRecord) -> Input:
    """The input in a record of `{process}.commands`.

    Raises:
        ContractError: headers or key are not those of an input.
    """
    found = headers_of(record)
    try:
        key = record.key.decode() if record.key else ""
        given = Input(
            found["ce_type"] or b"",
            record.value or b"",
            key,
            found["ce_id"].decode(),
            found["ce_time"],
            found.get("ce_correlationid") or found["ce_id"],
            found.get("traceparent") or b"",
            (found.get("ce_causationid") or b"").decode(),
            origin_of(found["origin"]) if "origin" in found else None,
            found.get(PRINCIPAL) or b"",
        )
        if time_in(given.time) is None:
            raise ContractError(f"ce_time {given.time.decode()!r} is no time with its zone")
        given.correlation.decode(), given.traceparent.decode(), given.principal.decode()
    except KeyError as error:
        raise ContractError(f"header {error} is missing; inputs are CloudEvents 1.0 in binary mode") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ContractError(f"unreadable header or key: {error}") from error
    if not key or key == "@" or not given.id:
        raise ContractError(f"key {key[:80]!r} and ce_id {given.id!r}: neither may be empty, and '@' is reserved")
    for name, copied in (("ce_causationid", found["ce_id"]), ("ce_correlationid", given.correlation)):
        if len(name) + len(copied) > LONGEST:  # a timer that it sets could not be read when it is due
            raise ContractError(f"ce_id {given.id[:80]!r} is too long: as {name} it has more than {LONGEST} bytes")
    if given.origin is None and given.type not in (DUE, CANCEL):
        raise ContractError("header 'origin' is missing: without it a repeated input cannot be recognised")
    return given


def answer_record(
    command: RawRecord, key: bytes, partition: int, source: bytes, body: dict[str, Any], process: str
) -> Outgoing:
    """The answer of a command processor to a process, sent to the instance's key.

    The command's own place is its origin, so that it counts once. A refusal carries the command, unless it is large:
    code that folds the inputs again may not have sent it.
    """
    id_ = header(command.headers, "ce_id")
    if "error" in body:
        type_ = header(command.headers, "ce_type")[:LONGEST].decode(errors="replace")
        body = {**small(body, _LARGE), "message": str(body["message"])[:_LONGEST], "type": type_}
        if len(command.value or b"") <= _LARGE:
            body["command"] = (command.value or b"").decode(errors="replace")
    headers = record_headers(
        event_id(process, key.decode(errors="replace"), id_.decode(errors="replace"), 0),
        source,
        NACK if "error" in body else ACK,
        key,
        header(command.headers, "ce_time"),
        header(command.headers, "ce_correlationid") or id_,
        id_,
        ("origin", f"{command.address.source}/0".encode()),
        traceparent=header(command.headers, "traceparent"),
        principal=header(command.headers, PRINCIPAL),
    )
    return Outgoing(partition, key, json.dumps(body, separators=(",", ":")).encode(), headers)


def due_record(
    app: str, process: str, key: str, name: str, timer: Due, partition: int, *, at: datetime | None = None
) -> Outgoing:
    """The input that fires a timer of an instance, as it was set, so that another setting does not fire.

    Args:
        at: log time when it fires, which may be later than the time that was set: what follows happens then, and a
            timer that fires late must not look as if old events were loaded. None = the time that was set.
    """
    raw, id_ = key.encode(), event_id(process, key, f"{timer.by}/{name}", 0)
    value = {"name": name, "at": timer.at, "by": timer.by}
    time = (timer.at if at is None else utc_text(at)).encode()
    source, correlation = f"/{app}/{process}".encode(), timer.correlation.encode()
    headers = record_headers(id_, source, DUE, raw, time, correlation, timer.by.encode())
    return Outgoing(partition, raw, json.dumps(value, separators=(",", ":")).encode(), headers)


MAX_BYTES = 1_048_588
"""The default limit of a batch of records in bytes (Kafka's `message.max.bytes`)."""
_FRAME = 512
"""An upper bound of a one-record batch's size besides keys, values and headers (KIP-98: varints, CRC, times)."""
_LONGEST_KEY = 1000
"""The limit of a key in bytes. It is `reply_key` of each command of the instance, and deciders refuse longer headers.
"""
_LETTER = 10_000
"""An upper bound of the size of a dead letter's reason and place."""


class Unusable(ContractError):
    """A readable event whose value makes no input that can be written; the router continues behind it.

    Args:
        why: what is wrong with the value.
        letter: the record of `{process}.dead` that keeps the event.
    """

    def __init__(self, why: str, letter: Outgoing) -> None:
        super().__init__(why)
        self.letter = letter


class Router:
    """Routes an event to a record of `{process}.commands`, or to none. It sends nothing.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of: the partition of `{process}.commands`, and of `{process}.dead`, that a key belongs to.
        max_bytes: the limit of a batch of records in either topic.
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
        self._source = f"/{app}/{process.name}".encode()

    def route(self, record: RawRecord) -> Outgoing | None:
        """The event as an input of the process, with its original bytes. None when the process does not listen to it.

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
        if wrong := invalid_key(key):
            raise self._unusable(record, f"{self._process.name}.correlate gave {wrong}")
        raw = key.encode()
        headers = record_headers(
            event_id(self._process.name, key, id_, 0),
            self._source,
            type_,
            raw,
            given.get("ce_time", b""),
            given.get("ce_correlationid") or id_.encode(),
            id_.encode(),
            ("origin", f"{record.address.source}/0".encode()),
            traceparent=given.get("traceparent", b""),
            principal=given.get(PRINCIPAL, b""),
        )
        if (weight := _weight(raw, record.value, headers)) > self._room:
            most = f"{self._room:,} are the most in {names.commands(self._process.name)}"
            raise self._unusable(record, f"the input weighs {weight:,} bytes, and {most}")
        return Outgoing(self._partition_of(raw), raw, record.value, headers)

    def _unusable(self, record: RawRecord, why: str) -> Unusable:
        partition = self._partition_of(record.key or b"")
        return Unusable(why, dead_letter(record, why, partition, self._room - _LETTER, by=ROUTER))


def invalid_key(key: str) -> str:
    """What is wrong with the key of an instance, '' when it is valid."""
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
    """The error of a router that stops at an event, with what the operator can do about it."""
    place = record.address
    return ContractError(
        f"{place} cannot be routed to {process}: {error}. Deploy code that can; where none ever will, have it passed "
        f"over: leftfold log skip {process} '{place}' --reason WHY"
    )
