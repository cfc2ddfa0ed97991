"""The encoding of state and rows as bytes: checked types, canonical JSON, unions tagged by class name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, core_schema

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.messages import adjusted_schema
from leftfold.safety import shown

__all__ = ["Storage", "number_in", "time_at", "time_in", "version_in"]


_MOST = 1 << 63
_LONGEST = 19


def number_in(text: str | bytes) -> int | None:
    """The number that a text spells in plain digits, from 0 to 2^63-1; None for any other text.

    `isdigit` and `int` alone disagree: '²' is a digit and no number, and `int` refuses a few thousand digits.
    """
    if len(text) > _LONGEST or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number < _MOST else None


def version_in(type_: bytes) -> tuple[str, int | None]:
    """The name in a `ce_type` header and its version, None when that is no number."""
    name, _, version = type_.decode(errors="replace").rpartition(".v")
    return name, number_in(version)


_LATEST = 253_402_300_799_000
"""The last second of the year 9999 in ms: a record may claim any time, but datetime ends there."""


def time_in(text: bytes) -> datetime | None:
    """The time in a header, in UTC; None when it is unreadable or has no time zone."""
    try:
        time = datetime.fromisoformat(text.decode())
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def time_at(milliseconds: int) -> datetime:
    """The time so many ms after 1970-01-01 UTC, clamped to the range of datetime."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LATEST) / 1000, UTC)


T = TypeVar("T")
SCALARS = (str, int, bool, Decimal, datetime, date, time, timedelta, UUID, NoneType)


class Storage(Generic[T]):
    """A codec for values of one storable type as canonical JSON.

    Args:
        canonical: sort mappings by key, so that equal rows give equal bytes; state keeps its own order instead, so
            that restored state iterates like the state that was stored.

    Raises:
        ConfigurationError: the type, or one inside it, cannot be stored; the message names where and why.
    """

    def __init__(self, type_: Any, where: str, *, canonical: bool = True) -> None:
        _check(type_, where, set())
        self.type, self.where = type_, where
        try:
            adapter: TypeAdapter[T] = TypeAdapter(type_)
        except Exception as error:  # pydantic raises several kinds for types it cannot express
            raise ConfigurationError(f"{where}: {type_!r} cannot be stored: {error}") from error
        schema = adjusted_schema(adapter.core_schema, canonical=canonical)
        self.schema: dict[str, Any] = adapter.json_schema(mode="validation")
        self._validator = SchemaValidator(schema)
        self._checker = SchemaValidator(_looking_inside(schema))
        self._serializer = SchemaSerializer(schema)
        self.encode: Callable[[T], bytes] = self._serializer.to_json

    def encode_checked(self, value: T) -> bytes:
        """The bytes of a value that has the storage's type at every depth, so that they are read as what it was.

        Raises:
            ContractError: it is or holds a value of another type, a time without zone or a number that is not finite.
        """
        try:
            self._checker.validate_python(value, strict=True)
            return self.encode(value)
        except ValidationError as error:
            raise ContractError(f"{self.where}: {_refusal(error)}") from error
        except (PydanticSerializationError, ValueError) as error:
            raise ContractError(f"{self.where}: {shown(value)} cannot be stored: {error}") from error

    def check(self, value: T) -> None:
        """Checks that a value can be encoded.

        Raises:
            ContractError: as for `encode_checked`.
        """
        self.encode_checked(value)

    def initial(self, value: T) -> T:
        """The initial state of a definition, after a check of its type.

        Raises:
            ConfigurationError: it is of another type than the definition says.
        """
        try:
            self.check(value)
            self.decode(self.encode(value))
        except ContractError as error:
            raise ConfigurationError(f"{error}; initial_state= and state= must agree") from error
        return value

    def decode(self, data: bytes | str) -> T:
        """The value from its bytes.

        Raises:
            ContractError: the bytes are no value of this type.
        """
        try:
            return self._validator.validate_json(data)  # type: ignore[no-any-return]  # pydantic-core is untyped here
        except ValidationError as error:
            raise ContractError(f"{self.where}: stored bytes are no such value: {error}") from error


_OF_USERS = ("function-before", "function-after", "function-wrap")


def _looking_inside(schema: Any) -> Any:
    """The schema for a check of values in memory: it looks inside instances, and runs no code of their classes."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_looking_inside, schema))
    if not isinstance(schema, dict):
        return schema
    done = {k: v if k in ("metadata", "serialization") else _looking_inside(v) for k, v in schema.items()}
    match done.get("type"):
        case "dataclass" | "model":
            inside = _by_attributes(done)
        case str() as type_ if type_ in _OF_USERS:
            inside = done["schema"]
        case _:
            return done
    return {**inside, "ref": done["ref"]} if "ref" in done else inside


def _by_attributes(record: dict[str, Any]) -> Any:
    """The schema of instances of a class by their attributes: pydantic takes that of a model from the class instead."""
    fields = record["schema"].get("fields", {"root": record})
    named = fields.items() if isinstance(fields, dict) else [(f["name"], f) for f in fields if not f.get("init_only")]
    found = {name: core_schema.model_field(field["schema"]) for name, field in named}
    is_one = core_schema.is_instance_schema(record["cls"])
    return core_schema.chain_schema([is_one, core_schema.model_fields_schema(found, from_attributes=True)])


def _refusal(error: ValidationError) -> str:
    """The first reason of a refusal, in the words that fields of plain types have for it."""
    first = error.errors(include_url=False)[0]
    value, why = first["input"], first["msg"]
    if first["type"] == "timezone_aware":
        return f"{shown(value)} has no time zone; rows and state hold aware times"
    held = first.get("ctx", {}).get("expected_tags") or why.removeprefix("Input should be ")
    return f"{shown(value)} is {type(value).__name__}, and the field holds {held}" if held != why else why


def is_record(type_: object) -> bool:
    """Whether the type is a dataclass or a pydantic model, that is, has named fields."""
    return isinstance(type_, type) and (dataclasses.is_dataclass(type_) or issubclass(type_, BaseModel))


def record_fields(type_: type) -> dict[str, Any]:
    """The fields of a dataclass or model with their resolved types, in order."""
    hints = get_type_hints(type_, include_extras=True)
    if issubclass(type_, BaseModel):
        return {name: hints[name] for name in type_.model_fields}
    return {field.name: hints[field.name] for field in dataclasses.fields(type_)}  # type: ignore[arg-type]  # it is one


def _check(type_: Any, where: str, seen: set[type]) -> None:
    origin, args = get_origin(type_), get_args(type_)
    if hasattr(type_, "__value__"):
        _check(type_.__value__, where, seen)
    elif origin is Annotated:
        _check(args[0], where, seen)
    elif origin in (Union, UnionType):
        _check_union(args, where)
        for arg in args:
            _check(arg, where, seen)
    elif origin in (tuple, frozenset):
        for arg in args:
            if arg is not Ellipsis:
                _check(arg, where, seen)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        for arg in args:
            _check(arg, where, seen)
    elif is_record(type_):
        _check_record(type_, where, seen)
    elif origin in (list, set):
        raise ConfigurationError(f"{where}: {type_} can be changed in place; use tuple[...] or frozenset[...]")
    elif not (type_ in SCALARS or origin is Literal or (isinstance(type_, type) and issubclass(type_, Enum))):
        raise ConfigurationError(
            f"{where}: {getattr(type_, '__name__', type_)} cannot be stored; use frozen dataclasses (or frozen "
            f"models) of str, int, bool, Decimal, aware datetime, date, UUID, Enum, X | None, tuples, frozensets, "
            f"mappings and such dataclasses{_hint(type_)}"
        )


def _hint(type_: Any) -> str:
    hints = {float: "; money and quantities are Decimal", list: "; a list is a tuple here", set: "; a set is frozenset"}
    return hints.get(type_, "") if isinstance(type_, type) else ""


def _check_union(args: tuple[Any, ...], where: str) -> None:
    records = [a for a in args if is_record(a)]
    others = [a for a in args if a is not NoneType and not is_record(a)]
    if (records and others) or len(others) > 1:
        raise ConfigurationError(
            f"{where}: a union may be X | None or of dataclasses, tagged by class name; "
            f"{' | '.join(getattr(a, '__name__', str(a)) for a in args)} is neither"
        )
    if len({r.__name__ for r in records}) < len(records):
        raise ConfigurationError(f"{where}: two classes of one union have one name; the tag is the name, so rename one")


def _check_record(type_: type, where: str, seen: set[type]) -> None:
    if type_ in seen:
        return
    seen.add(type_)
    frozen = (
        type_.model_config.get("frozen", False) if issubclass(type_, BaseModel) else type_.__dataclass_params__.frozen  # type: ignore[attr-defined]  # every dataclass has it
    )
    if not frozen:
        raise ConfigurationError(f"{where}: {type_.__name__} is not frozen; write @dataclass(frozen=True)")
    try:
        fields = record_fields(type_)
    except NameError as error:
        raise ConfigurationError(f"{where}: {type_.__name__}: {error}; import the type at module level") from error
    for name, hint in fields.items():
        _check(hint, f"{where}: {type_.__name__}.{name}", seen)
