"""Inputs of processes on the wire: events that were routed, answers to their commands, timers that are due."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple

from leftfold.codec import event_id, header, utc_text
from leftfold.engine.batch import HeaderList, Outgoing
from leftfold.engine.instance import Due
from leftfold.engine.received import CONTENT_TYPE, LONGEST, SPEC_VERSION, headers_of, origin_of
from leftfold.engine.reply import small
from leftfold.errors import ContractError
from leftfold.moments import moment_in
from leftfold.ports import RawRecord

__all__ = ["ACK", "BARRIER", "CANCEL", "DUE", "NACK", "NO_INPUT", "Input", "answer_record", "due_record", "read_input"]

_LARGE, _LONGEST = 100_000, 2000
BARRIER = b"leftfold.barrier.v1"
"""The type of a record with the key `@` that a router writes when it begins: it is no input, and no command."""
NO_INPUT: HeaderList = [("ce_specversion", b"1.0"), ("ce_type", BARRIER)]
"""The headers of such a record."""
ACK, NACK, DUE = b"leftfold.ack.v1", b"leftfold.nack.v1", b"leftfold.due.v1"
CANCEL = b"leftfold.cancel.v1"
"""The type of what an operator writes to end a timer; one that fires it early is `DUE`, as if its time had come."""


class Input(NamedTuple):
    """What a process gets, as its lane sees it; `cause` is the id of the event, or of the command that was answered."""

    type: bytes
    value: bytes
    key: str
    id: str
    time: bytes
    correlation: bytes
    traceparent: bytes
    cause: str
    origin: tuple[str, int, int] | None


def read_input(record: RawRecord) -> Input:
    """The input in a record of `{process}.commands`.

    Raises:
        ContractError: headers or key are not those of an input.
    """
    found = headers_of(record)
    try:
        key = record.key.decode() if record.key else ""
        given = Input(
            found["ce_type"],
            record.value or b"",
            key,
            found["ce_id"].decode(),
            found["ce_time"],
            found.get("ce_correlationid") or found["ce_id"],
            found.get("traceparent") or b"",
            (found.get("ce_causationid") or b"").decode(),
            origin_of(found["origin"]) if "origin" in found else None,
        )
        if moment_in(given.time) is None:
            raise ContractError(f"ce_time {given.time.decode()!r} is no time with its zone")
        given.correlation.decode(), given.traceparent.decode()
    except KeyError as error:
        raise ContractError(f"header {error} is missing; inputs are CloudEvents 1.0 in binary mode") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ContractError(f"unreadable header or key: {error}") from error
    if not key or key == "@" or not given.id:
        raise ContractError(f"key {key[:80]!r} and ce_id {given.id!r}: neither may be empty, and '@' is reserved")
    if given.origin is None and given.type not in (DUE, CANCEL):
        raise ContractError("header 'origin' is missing: nobody could tell whether this input was there before")
    return given


def answer_record(
    command: RawRecord, key: bytes, partition: int, source: bytes, body: dict[str, Any], process: str
) -> Outgoing:
    """What a lane answers a process: to its key, with the command's own place as origin, so that it counts once.

    A refusal carries the command, unless it is large: whoever folds the inputs again need not have sent it.
    """
    id_ = header(command.headers, "ce_id")
    if "error" in body:
        type_ = header(command.headers, "ce_type")[:LONGEST].decode(errors="replace")
        body = {**small(body, _LARGE), "message": str(body["message"])[:_LONGEST], "type": type_}
        if len(command.value or b"") <= _LARGE:
            body["command"] = (command.value or b"").decode(errors="replace")
    headers: HeaderList = [
        SPEC_VERSION,
        ("ce_id", event_id(process, key.decode(errors="replace"), id_.decode(errors="replace"), 0).encode()),
        ("ce_source", source),
        ("ce_type", NACK if "error" in body else ACK),
        ("ce_subject", key),
        ("ce_time", header(command.headers, "ce_time")),
        ("ce_correlationid", header(command.headers, "ce_correlationid") or id_),
        ("ce_causationid", id_),
        CONTENT_TYPE,
        ("origin", f"{command.topic}/{command.partition}/{command.offset}/0".encode()),
    ]
    if traceparent := header(command.headers, "traceparent"):
        headers.append(("traceparent", traceparent))
    return Outgoing(partition, key, json.dumps(body, separators=(",", ":")).encode(), headers)


def due_record(
    app: str, process: str, key: str, name: str, timer: Due, partition: int, *, at: datetime | None = None
) -> Outgoing:
    """What says to an instance that its timer is due; of the timer as it was set, so that another one is not fired.

    Args:
        at: log time when it fires, which may be later than what was set: what follows happens then, and a timer that
            fires late must not look as if old events were loaded. Absent = the time that was set.
    """
    raw, id_ = key.encode(), event_id(process, key, f"{timer.by}/{name}", 0)
    value = {"name": name, "at": timer.at, "by": timer.by}
    headers: HeaderList = [
        SPEC_VERSION,
        ("ce_id", id_.encode()),
        ("ce_source", f"/{app}/{process}".encode()),
        ("ce_type", DUE),
        ("ce_subject", raw),
        ("ce_time", timer.at.encode() if at is None else utc_text(at).encode()),
        ("ce_correlationid", timer.correlation.encode()),
        ("ce_causationid", timer.by.encode()),
        CONTENT_TYPE,
    ]
    return Outgoing(partition, raw, json.dumps(value, separators=(",", ":")).encode(), headers)
