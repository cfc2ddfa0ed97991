"""Commands on the wire: how a sender writes one and how a lane reads it."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from leftfold.codec import JSON, UNREADABLE, MessageCodec, digest
from leftfold.digits import number_in
from leftfold.errors import ContractError
from leftfold.messages import Command
from leftfold.ports import RawRecord

__all__ = [
    "DELIVERY_SECONDS", "Received", "command_headers", "command_id", "deadline_header", "headers_of", "origin_of",
    "read_command",
]  # fmt: skip

SPEC_VERSION = ("ce_specversion", b"1.0")
LONGEST, MOST = 1024, 64
"""Bytes of a header with its name, and how many headers a command or an input has at most."""
DELIVERY_SECONDS = 30
"""How long a client's command may be under way: half of what answers are remembered, so that clocks may differ."""
CONTENT_TYPE = ("content-type", JSON)


class Received(NamedTuple):
    """A command as a lane sees it. What only travels on into headers stays bytes."""

    command: Command
    key: str
    id: str
    digest: str
    time: bytes
    correlation: bytes
    traceparent: bytes
    expected_version: int | None = None
    origin: tuple[str, int, int] | None = None
    reply_to: bytes = b""
    reply_key: bytes = b""
    deadline: int | None = None
    """In ms since 1970: the broker must have appended it by then. Only commands of clients have one."""


def command_id() -> str:
    """A uuid7: sortable by time, from this machine's clock and randomness (RFC 9562 §5.7)."""
    raw = bytearray(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10))
    raw[6] = raw[6] & 0x0F | 0x70
    raw[8] = raw[8] & 0x3F | 0x80
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def command_headers(
    command: Command,
    *,
    id: str,
    source: str,
    at: bytes,
    type_: bytes,
    expected_version: int | None = None,
    reply_to: bytes = b"",
    correlation: str = "",
    traceparent: str = "",
) -> list[tuple[str, bytes]]:
    """The CloudEvents headers of a command from a client."""
    spec = command.__leftfold__
    headers = [
        SPEC_VERSION,
        ("ce_id", id.encode()),
        ("ce_source", f"/{source}/client".encode()),
        ("ce_type", type_),
        ("ce_subject", getattr(command, spec.key).encode()),
        ("ce_time", at),
        ("ce_correlationid", (correlation or id).encode()),
        CONTENT_TYPE,
    ]
    if expected_version is not None:
        headers.append(("expected_version", b"%d" % expected_version))
    if reply_to:
        headers.append(("reply_to", reply_to))
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return headers


def deadline_header(now: float, delivery: float = DELIVERY_SECONDS) -> tuple[str, bytes]:
    """The header of a command that is sent at `now`, in seconds since 1970, and under way for `delivery` at most."""
    return "deadline", b"%d" % (1000 * (now + delivery))


def read_command(codec: MessageCodec[Any], record: RawRecord) -> Received:
    """The command in a record.

    Raises:
        ContractError: the record is no command that this codec knows, or its headers disagree with its body.
    """
    found = headers_of(record)
    try:
        id_ = found["ce_id"].decode()
        at = found["ce_time"]
        key = record.key.decode() if record.key else ""
        if (time := datetime.fromisoformat(at.decode())).tzinfo is None:
            raise ContractError(f"ce_time {at.decode()!r} has no time zone")
        time.astimezone(UTC)
        expected = found.get("expected_version")
        expected_version = int(expected) if expected is not None else None
        deadline = int(found["deadline"]) if "deadline" in found else None
        origin = origin_of(found["origin"]) if "origin" in found else None
        correlation, traceparent = found.get("ce_correlationid") or found["ce_id"], found.get("traceparent") or b""
        if traceparent or correlation != found["ce_id"]:
            # They travel on into events, where whoever reads them expects text.
            correlation.decode(), traceparent.decode()
    except KeyError as error:
        why = (found.get(UNREADABLE) or b"").decode(errors="replace")
        raise ContractError(why or f"header {error} is missing; commands are CloudEvents 1.0 in binary mode") from error
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise ContractError(f"unreadable header or key: {error}") from error
    if not key or key == "@" or not id_:
        raise ContractError(f"key {key[:80]!r} and ce_id {id_!r}: neither may be empty, and '@' is reserved")
    if (subject := found.get("ce_subject", record.key)) != record.key:
        raise ContractError(f"ce_subject is {subject!r} but the record's key is {key!r}")
    value = record.value or b""
    command: Command = codec.decode(found.get("ce_type") or b"", value)
    named = getattr(command, command.__leftfold__.key)
    if named != key:
        raise ContractError(f"the record's key is {key!r} but {command.__leftfold__.key} is {named!r}")
    return Received(
        command,
        key,
        id_,
        digest(value if expected is None else value + b"@" + expected),
        at,
        correlation,
        traceparent,
        expected_version,
        origin,
        found.get("reply_to") or b"",
        found.get("reply_key") or b"",
        deadline,
    )


def headers_of(record: RawRecord) -> dict[str, bytes]:
    """The headers of a command or an input by name; of one that is there twice, the last.

    Raises:
        ContractError: there are too many, or one is too long: ids, times and places are short, and travel on.
    """
    if len(record.headers) > MOST:
        raise ContractError(f"{len(record.headers)} headers; {MOST} are the most")
    for name, value in record.headers:
        if len(name) + len(value or b"") > LONGEST and name != "ce_subject":  # the key, which is weighed by itself
            raise ContractError(f"header {name[:80]!r} has more than {LONGEST} bytes; ids, times and places are short")
    return dict(record.headers)


def origin_of(text: bytes) -> tuple[str, int, int]:
    """`topic/partition/offset/index` as (`topic/partition`, offset, index).

    Raises:
        ValueError: it is none.
    """
    topic, *numbers = text.decode().rsplit("/", 3)
    partition, offset, index = (-1 if (n := number_in(number)) is None else n for number in numbers)
    if min(partition, offset, index) < 0:
        raise ValueError(f"{text!r} is no place of a record")
    return f"{topic}/{partition}", offset, index


def now_text() -> bytes:
    """The wall clock as a header value."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z").encode()
