"""The codec between bytes and typed messages: CloudEvents 1.0 in binary mode, JSON values, upcasts on reading."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from hashlib import blake2b, sha1
from typing import Any, Generic, TypeVar
from uuid import NAMESPACE_URL, uuid5

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, SchemaValidator, TzInfo, to_json

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.messages import Command, Event, is_plain, parts_in
from leftfold.model.position import Recorded
from leftfold.model.state_codec import checked_json
from leftfold.model.typing import has_exact_value
from leftfold.ports.protocols import Headers, RawRecord
from leftfold.safety import shown

__all__ = [
    "MessageCodec",
    "digest",
    "event_id",
    "exact_json",
    "header",
    "is_last_of_decision",
    "read_recorded",
    "utc_text",
]

M = TypeVar("M", bound=Event | Command)
JSON = b"application/json"
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_MOST_FOREIGN, _SHOWN = 1000, 200
_NAMESPACE = sha1(uuid5(NAMESPACE_URL, "leftfold").bytes, usedforsecurity=False)


def event_id(category: str, key: str, command_id: str, index: int) -> str:
    """A uuid5 of category, key, command id and index: the same decision always gives the same event ids."""
    hashed = _NAMESPACE.copy()
    hashed.update(f"{category}/{len(key)}:{key}/{command_id}/{index}".encode())
    h = hashed.hexdigest()
    return f"{h[:8]}-{h[8:12]}-5{h[13:16]}-{_VARIANT[h[16]]}{h[17:20]}-{h[20:32]}"


def digest(value: bytes) -> str:
    """A body's hash in sixteen hex digits; `answered` compares it, since a reused command id may carry another body."""
    return blake2b(value, digest_size=8).hexdigest()


def header(headers: Headers, name: str) -> bytes:
    """The value of a header, empty when absent; the last one when it occurs twice."""
    for key, value in reversed(headers):
        if key == name:
            return value or b""
    return b""


def is_last_of_decision(decision: bytes) -> bool:
    """Whether the `ce_decision` k/n of a record is that of the last one of its decision; so is one without a number."""
    k, _, n = decision.partition(b"/")
    return k == n or not n


UNREADABLE = "unreadable"
"""The header of a record in place of unreadable bytes: the reason."""


def utc_text(time: datetime) -> str:
    """A time as RFC 3339 in UTC.

    Raises:
        ContractError: the time has no zone.
    """
    if time.tzinfo is None:
        raise ContractError(f"{time!r} has no time zone; use datetime.now(timezone.utc)")
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


@cache
def has_exact_values(cls: type[Event | Command]) -> bool:
    """Whether all that a message may hold is read as it is written: valid values of plain types, and such defaults."""
    return _doubtful_fields(cls) == ()


@cache
def _doubtful_fields(cls: type[Event | Command]) -> tuple[tuple[str, Callable[..., Any]], ...] | None:
    """The fields of a plain message whose defaults might not be read as they are written, with their validators."""
    if not is_plain(cls):
        return None
    schema: Any = cls.__pydantic_core_schema__
    config = schema.get("config", {})
    return tuple(
        (name, SchemaValidator(field["schema"], config).validate_python)
        for name, field in schema["schema"]["fields"].items()
        if not all(has_exact_value(default, config) for default in parts_in(field, ("default",)))
    )


def _holds_exact_values(message: Event | Command) -> bool:
    """Whether a plain message has values of the right types where its defaults are doubtful: a look at these alone."""
    doubtful = _doubtful_fields(type(message))
    if doubtful is None:
        return False
    try:
        for name, validate in doubtful:
            value = getattr(message, name)
            if validate(value, strict=True) != value:
                return False
    except ValidationError:
        return False
    return True


@cache
def _time_fields(cls: type[Event | Command]) -> tuple[str, ...]:
    """The fields of a plain message that may hold times."""
    schema: Any = cls.__pydantic_core_schema__
    return tuple(name for name, field in schema["schema"]["fields"].items() if parts_in(field, ("datetime",)))


def _has_times_as_read(value: Any) -> bool:
    """Whether each time in a plain value is in UTC or was read from JSON; those of other zones are read as others."""
    if isinstance(value, datetime):
        return value.tzinfo is UTC or type(value.tzinfo) is TzInfo
    if isinstance(value, (list, tuple, dict)):
        return all(map(_has_times_as_read, value.values() if isinstance(value, dict) else value))
    return True


def exact_json(message: Event | Command) -> bytes:
    """The JSON bytes of a message, which are read as an equal one.

    Raises:
        ContractError: they are not, so that what is decided now would differ from what is read later.
    """
    return with_exact_json(message)[1]


def with_exact_json(message: M) -> tuple[M, bytes]:
    """A message as it is read later, and its JSON bytes.

    It is equal to the given one; but a time has its offset then, and no rules of a zone, which change what is computed.

    Raises:
        ContractError: they are not, so that what is decided now would differ from what is read later.
    """
    cls: Any = type(message)
    try:
        value = checked_json(message.__pydantic_serializer__.to_json(message))
        if has_exact_values(cls) or _holds_exact_values(message):
            for name in _time_fields(cls):
                if not _has_times_as_read(getattr(message, name)):
                    break
            else:
                return message, value
        again: M = cls.__pydantic_validator__.validate_json(value)
    except PydanticSerializationError as error:
        raise ContractError(f"{cls.__name__} cannot be written: {_brief(error)}") from error
    except ValueError as error:
        raise ContractError(f"{cls.__name__} could not be read again: {_brief(error)}") from error
    if again != message and (other := _in_utc(again)) != (message := _in_utc(message)):
        why = f"{cls.__name__} would be read as another one: {_difference(message, other)}"
        raise ContractError(f"{why}; give it a value or a default of its type, and a union a discriminator")
    return again, value


def _in_utc(value: Any) -> Any:
    """The value with its times in UTC: a time in an hour that its zone repeats or omits equals no other (PEP 495)."""
    match value:
        case datetime() if value.tzinfo is not None:
            with suppress(OverflowError):
                return value.astimezone(UTC)
        case dict():
            return {_in_utc(key): _in_utc(part) for key, part in value.items()}
        case list():
            return list(map(_in_utc, value))
        case tuple():
            return tuple(map(_in_utc, value))
        case set() | frozenset():
            return frozenset(map(_in_utc, value))
        case BaseModel():
            return _with_changed(value, type(value).model_fields)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _with_changed(value, [field.name for field in dataclasses.fields(value)])
    return value


def _with_changed(record: Any, names: Iterable[str]) -> Any:
    made = copy(record)
    for name in names:
        object.__setattr__(made, name, _in_utc(getattr(record, name)))
    if isinstance(made, BaseModel):
        object.__setattr__(made, "__pydantic_private__", None)  # private attributes are not written
    return made


def _difference(message: Event | Command, again: Event | Command) -> str:
    for name in type(message).model_fields:
        one, other = getattr(message, name), getattr(again, name)
        if one != other or type(one) is not type(other):
            return f"its {name} is {shown(one)[:_SHOWN]}, and is read as {shown(other)[:_SHOWN]}"
    return "they are not equal"


class MessageCodec(Generic[M]):
    """A codec for messages of some classes, which decodes any released version up to the classes' own.

    For a class that is not among them, `wanted` returns None and `decode` raises an error.
    """

    def __init__(self, classes: Iterable[type[M]]) -> None:
        self.classes = tuple(classes)
        self.types: dict[type[M], bytes] = {}
        self._readers: dict[bytes, Callable[[bytes], M]] = {}
        self._foreign: set[bytes] = set()
        self._known: dict[str, type[M]] = {}
        for cls in self.classes:
            self._add(cls)

    def _add(self, cls: type[M]) -> None:
        spec = cls.__leftfold__
        name = f"{spec.category}.{spec.name}"
        if name in self._known:
            raise ConfigurationError(f"{cls.__name__} and {self._known[name].__name__} both have the wire name {name}")
        self._known[name] = cls
        self.types[cls] = spec.type.encode()
        self._readers[f"{name}.v{spec.version}".encode()] = cls.__pydantic_validator__.validate_json
        for old in range(1, spec.version):
            self._readers[f"{name}.v{old}".encode()] = _upcasting(cls, old)

    def encode(self, message: M) -> bytes:
        """The JSON bytes of a message."""
        return message.__pydantic_serializer__.to_json(message)

    def decode(self, type_: bytes, value: bytes | None) -> M:
        """The message of a wire type.

        Raises:
            ContractError: unknown type, newer version than known, or a value that is no such message.
        """
        message = self.wanted(type_, value)
        if message is None:
            known = ", ".join(sorted(t.decode() for t in self.types.values()))
            raise ContractError(f"unknown type {type_.decode(errors='replace')!r}; this code knows {known}")
        return message

    def wanted(self, type_: bytes, value: bytes | None) -> M | None:
        """The message, or None when its class is not among the codec's.

        Raises:
            ContractError: newer version than known, or a value that is no such message.
        """
        read = self._readers.get(type_)
        if read is None:
            self._check_foreign(type_)
            return None
        try:
            return read(value or b"")
        except Exception as error:  # upcasts and validators are user code, and the bytes may be hostile
            raise ContractError(f"no {type_.decode(errors='replace')}: {_brief(error)}") from error

    def _check_foreign(self, type_: bytes) -> None:
        if type_ in self._foreign:
            return
        name, _, version = type_.decode(errors="replace").rpartition(".v")
        known = self._known.get(name)
        if known is not None:
            raise ContractError(
                f"{name} version {version} is not one of 1..{known.__leftfold__.version}, which this code knows; "
                f"deploy the code that knows it"
            )
        if not name or not version.isdigit():
            raise ContractError(f"ce_type {type_.decode(errors='replace')!r} is not of the form category.Name.v1")
        if len(self._foreign) < _MOST_FOREIGN:
            self._foreign.add(type_)


def _upcasting(cls: type[M], old: int) -> Callable[[bytes], M]:
    spec = cls.__leftfold__

    def read(value: bytes) -> M:
        fields = json.loads(value, parse_float=Decimal)
        for version in range(old, spec.version):
            fields = spec.upcasts[version](fields)
        # As JSON again: where types are strict, the rules for values of Python are others.
        message: M = cls.__pydantic_validator__.validate_json(to_json(json_form(fields)))
        return message

    return read


def json_form(value: Any) -> Any:
    """Fields that were read with Decimals, with numbers as JSON has them; what no float writes alike becomes text."""
    match value:
        case dict():
            return {name: json_form(one) for name, one in value.items()}
        case list():
            return [json_form(one) for one in value]
        case Decimal():
            return number if Decimal(repr(number := float(value))).as_tuple() == value.as_tuple() else value
    return value


def _brief(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where + ': ' if where else ''}{first['msg']}" + (
            f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        )
    return f"{type(error).__name__}: {error}"


def read_recorded(codec: MessageCodec[Any], record: RawRecord) -> Recorded[Any] | None:
    """The record as a typed event with its metadata, None when its class is not among the codec's.

    Raises:
        ContractError: headers or value break the contract.
    """
    found = dict(record.headers)
    event = codec.wanted(found.get("ce_type") or b"", record.value)
    if event is None:
        return None
    try:
        k, n = found["ce_decision"].split(b"/")
        return Recorded(
            event=event,
            key=(record.key or b"").decode(),
            id=found["ce_id"].decode(),
            time=datetime.fromisoformat(found["ce_time"].decode()),
            version=int(found["ce_sequence"]),
            decision=(int(k), int(n)),
            correlation_id=found.get("ce_correlationid", b"").decode(),
            causation_id=found.get("ce_causationid", b"").decode(),
            traceparent=found.get("traceparent", b"").decode(),
            principal=found.get("ce_authid", b"").decode(),
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise ContractError(f"{record.address}: broken headers: {error!r}") from error
