"""Commands and their answers as records: an ack carries a receipt, a nack an error with its fields."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from leftfold.errors import ConflictError, ContractError, DecisionFailed, DomainError, LeftfoldError, OutcomeUnknown
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.model.position import Position, Receipt
from leftfold.model.state_codec import number_in
from leftfold.ports.message_codec import JSON, UNREADABLE, MessageCodec, digest
from leftfold.ports.outgoing import HeaderList
from leftfold.ports.protocols import RawRecord

__all__ = [
    "DELIVERY_SECONDS", "DIGEST", "PRINCIPAL", "Received", "ack", "command_digest", "command_headers", "command_id",
    "deadline_header", "headers_of", "nack", "origin_of", "read_command", "read_reply", "record_headers", "small",
    "to_error",
]  # fmt: skip


SPEC_VERSION = ("ce_specversion", b"1.0")
LONGEST, MOST = 1024, 64
"""The limits of a command or an input: bytes of a header with its name, and the number of headers."""
DELIVERY_SECONDS = 30
"""How long a client's command may be under way: half of the time answers are remembered, since clocks differ."""
CONTENT_TYPE = ("content-type", JSON)
_CORRELATION = "ce_correlationid"
PRINCIPAL = "ce_authid"
"""On whose behalf a record was written (CloudEvents' Auth Context); absent when it is not known."""
DIGEST = "digest"
"""The header of an answer with the digest of its command; absent in answers of older workers."""


class Received(NamedTuple):
    """A command as a processor reads it; values that are only copied into headers stay bytes."""

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
    principal: bytes = b""


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
    traceparent: str = "",
    principal: str = "",
) -> list[tuple[str, bytes]]:
    """The CloudEvents headers of a command from a client.

    Raises:
        ContractError: the id or the principal's name is too long for a header.
    """
    spec, raw_id = command.__leftfold__, id.encode()
    if len(_CORRELATION) + len(raw_id) > LONGEST:
        raise ContractError(f"id {id[:80]!r} is longer than {LONGEST - len(_CORRELATION):,} bytes")
    headers = [
        SPEC_VERSION,
        ("ce_id", raw_id),
        ("ce_source", f"/{source}/client".encode()),
        ("ce_type", type_),
        ("ce_subject", getattr(command, spec.key).encode()),
        ("ce_time", at),
        (_CORRELATION, raw_id),
        CONTENT_TYPE,
    ]
    if expected_version is not None:
        headers.append(("expected_version", b"%d" % expected_version))
    if reply_to:
        headers.append(("reply_to", reply_to))
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    if principal:
        headers.append((PRINCIPAL, name := principal.encode()))
        if len(PRINCIPAL) + len(name) > LONGEST:
            raise ContractError(f"principal {principal[:80]!r} is longer than {LONGEST - len(PRINCIPAL):,} bytes")
    return headers


def record_headers(
    id_: str,
    source: bytes,
    type_: bytes,
    key: bytes,
    time: bytes,
    correlation: bytes,
    cause: bytes,
    *own: tuple[str, bytes],
    traceparent: bytes = b"",
    principal: bytes = b"",
) -> HeaderList:
    """The CloudEvents headers of a record that follows from another one, and behind them those of its kind."""
    headers = [
        SPEC_VERSION,
        ("ce_id", id_.encode()),
        ("ce_source", source),
        ("ce_type", type_),
        ("ce_subject", key),
        ("ce_time", time),
        ("ce_correlationid", correlation),
        ("ce_causationid", cause),
        CONTENT_TYPE,
        *own,
    ]
    return headers + [(name, value) for name, value in (("traceparent", traceparent), (PRINCIPAL, principal)) if value]


def deadline_header(now: float, delivery: float = DELIVERY_SECONDS) -> tuple[str, bytes]:
    """The deadline header of a command sent at `now`, in seconds since 1970, and under way for `delivery` at most."""
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
        deadline = number_in(found["deadline"]) if "deadline" in found else None
        if deadline is None and "deadline" in found:
            raise ContractError(f"deadline {found['deadline'][:80].decode()!r} is no number of milliseconds since 1970")
        origin = origin_of(found["origin"]) if "origin" in found else None
        correlation, traceparent = found.get("ce_correlationid") or found["ce_id"], found.get("traceparent") or b""
        principal = found.get(PRINCIPAL) or b""
        if traceparent or principal or correlation != found["ce_id"]:
            # They are copied into events, where readers expect text.
            correlation.decode(), traceparent.decode(), principal.decode()
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
        command_digest(value, expected),
        at,
        correlation,
        traceparent,
        expected_version,
        origin,
        found.get("reply_to") or b"",
        found.get("reply_key") or b"",
        deadline,
        principal,
    )


def command_digest(value: bytes, expected: bytes | None) -> str:
    """The digest of what a client asks for: a command's value, and the version that it expects, if any."""
    return digest(value if expected is None else value + b"@" + expected)


def headers_of(record: RawRecord) -> dict[str, bytes]:
    """The headers of a command or an input by name; the last one where a name occurs twice.

    Raises:
        ContractError: there are too many, or one is too long: ids, times and places are short, and are copied further.
    """
    if len(record.headers) > MOST:
        raise ContractError(f"{len(record.headers)} headers; {MOST} are the most")
    for name, value in record.headers:
        if len(name) + len(value or b"") > LONGEST and name != "ce_subject":  # the key, whose size is checked by itself
            raise ContractError(f"header {name[:80]!r} has more than {LONGEST} bytes; ids, times and places are short")
    return dict(record.headers)


def origin_of(text: bytes) -> tuple[str, int, int]:
    """`topic/partition/offset/index` as (`topic/partition`, offset, index).

    Raises:
        ValueError: the text has another form.
    """
    topic, *numbers = text.decode().rsplit("/", 3)
    partition, offset, index = (-1 if (n := number_in(number)) is None else n for number in numbers)
    if min(partition, offset, index) < 0:
        raise ValueError(f"{text!r} is no place of a record")
    return f"{topic}/{partition}", offset, index


def now_text() -> bytes:
    """The wall clock's time as a header value."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat().replace("+00:00", "Z").encode()


SMALL = 2048
_SHOWN = 300

T = TypeVar("T")
_MOST = 1 << 63
"""Beyond the offsets, versions and partitions of any topic."""


def ack(version: int, events: int, position: str) -> bytes:
    """The value of an accepted command's answer; `position` is JSON."""
    return b'{"version":%d,"events":%d,"position":%b}' % (version, events, position.encode())


def nack(error: LeftfoldError) -> dict[str, Any]:
    """The value of a refused command's answer: `{error, message, fields}`."""
    fields: dict[str, Any] = {}
    if isinstance(error, DomainError):
        fields = to_jsonable_python(error._fields())
    elif isinstance(error, ConflictError):
        fields = {"key": error.key, "expected": error.expected, "actual": error.actual}
    elif isinstance(error, OutcomeUnknown):
        fields = {"command_id": error.command_id, "why": error.why}
    return {"error": type(error).__name__, "message": str(error), "fields": fields}


def small(refused: dict[str, Any], most: int = SMALL) -> dict[str, Any]:
    """The value of a refused command's answer; one of more than `most` bytes is cut to name, beginning and digest."""
    encoded = json.dumps(refused, separators=(",", ":")).encode()
    if len(encoded) <= most:
        return refused
    message = f"{refused['message'][:_SHOWN]} … (its details were too large to be kept)"
    return {"error": refused["error"][:_SHOWN], "message": message, "fields": {}, "digest": digest(encoded)}


def read_reply(value: bytes, command: type[Command], partitions: int = _MOST) -> Receipt | LeftfoldError:
    """The receipt or the error in an answer.

    Its content is not trusted, since any writer of the topic may have written it.

    Args:
        partitions: the number of partitions of the command category's events.

    Raises:
        ContractError: it is no answer to such a command.
    """
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"no answer that this code can read: {value[:200]!r} ({_brief(error)})") from error
    try:
        found = _checked(fields, dict, "the answer")
        if "error" in found:
            return to_error(found, command)
        position = _position(found["position"], names.events(command.__leftfold__.category), partitions)
        return Receipt(position, _number(found["version"], "version"), _number(found["events"], "events"))
    except (ContractError, KeyError) as error:
        raise ContractError(f"no answer that this code can read: {value[:200]!r} ({_brief(error)})") from error


def to_error(fields: dict[str, Any], command: type[Command]) -> LeftfoldError:
    """The error in a nack: the command's own DomainError where it declares it.

    Raises:
        ContractError: the fields are not those of a nack.
    """
    try:
        name, message = _text(fields["error"], "error"), _text(fields["message"], "message")
        if "digest" in fields:
            return ContractError(f"{name}: {message}")
        found = _checked(fields.get("fields", {}), dict, "fields")
        for declared in command.__leftfold__.rejects:
            if declared.__name__ == name:
                return _declared(declared, found, message)
        if name == ConflictError.__name__:
            expected, actual = (_number(found[each], each) for each in ("expected", "actual"))
            return ConflictError(_text(found["key"], "key"), expected, actual)
        if name == OutcomeUnknown.__name__:
            return OutcomeUnknown(_text(found["command_id"], "command_id"), _text(found["why"], "why"))
    except KeyError as error:
        raise ContractError(f"an error without {error}: {_brief(fields)}") from error
    return DecisionFailed(message) if name == DecisionFailed.__name__ else ContractError(message)


def _declared(error: type[DomainError], fields: dict[str, Any], message: str) -> LeftfoldError:
    """The DomainError with these fields; making and printing it runs user code, which may fail."""
    try:
        known = {field.name for field in dataclasses.fields(error)}  # type: ignore[arg-type]  # a DomainError is one
        adapters = {name: _adapter(error, name) for name in fields if name in known}  # type: ignore[arg-type]  # as above
        found = error(**{name: _read(adapter, fields[name]) for name, adapter in adapters.items()})
        str(found)
    except Exception as failure:  # noqa: BLE001
        return ContractError(f"{message} ({error.__name__}, whose fields this code cannot read: {_brief(failure)})")
    return found


def _read(adapter: TypeAdapter[Any], value: Any) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError:  # strict types take the text of a Decimal or a time from JSON alone
        return adapter.validate_json(json.dumps(value))


@lru_cache(maxsize=1024)
def _adapter(error: type[DomainError], field: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(error)[field])


def _position(found: object, topic: str, partitions: int) -> Position:
    """A position in the events of one category.

    A client must not wait for another topic's offset, or for one that does not exist.
    """
    offsets: dict[str, dict[int, int]] = {}
    for name, at in _checked(found, dict, "position").items():
        if name != topic:
            raise ContractError(f"the position is in {name!r}, not in {topic}")
        for text, offset in _checked(at, dict, "position").items():
            partition = number_in(text)
            if partition is None or partition >= partitions:
                raise ContractError(f"{topic} has no partition {_brief(text)}")
            offsets.setdefault(topic, {})[partition] = _number(offset, "offset")
    return Position(offsets)


def _number(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ContractError(f"{what} is {_brief(value)}, and no number from 0 on")
    return value


def _text(value: object, what: str) -> str:
    return str(_checked(value, str, what)).encode(errors="replace").decode()


def _checked(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise ContractError(f"{what} is {_brief(value)}, and no {kind.__name__}")
    return value


def _brief(value: object) -> str:
    try:
        return repr(value)[:200]
    except RecursionError:
        return type(value).__name__
