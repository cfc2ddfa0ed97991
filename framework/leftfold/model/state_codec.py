"""The encoding of state and rows as bytes: checked types, canonical JSON, unions tagged by class name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import (
    PydanticCustomError,
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    from_json,
    to_json,
)

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.messages import OF_USERS, UNTAGGED, adjusted_schema, parts_in, with_parts
from leftfold.model.typing import check_stored_type, has_exact_members
from leftfold.safety import shown

__all__ = [
    "Storage",
    "check_record",
    "check_time_format",
    "checked_json",
    "json_of",
    "number_in",
    "time_at",
    "time_in",
    "version_in",
]


_MOST = 1 << 63
_LONGEST = 19
_DIGITS = 4300
"""Of the longest whole number that Python and pydantic read."""
_DEEP = 100
"""Levels that are surely read again: pydantic writes 255, and reads 200."""


def checked_json(data: bytes) -> bytes:
    """The JSON of a message or state, in which no whole number is too long for its readers.

    Raises:
        ContractError: one has more digits than Python and pydantic read; both would write it.
    """
    if len(data) > _DIGITS:
        try:
            json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ContractError(f"it could not be read again: {error}") from error
    return data


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


class Storage(Generic[T]):
    """A codec for values of one storable type as canonical JSON.

    Args:
        canonical: sort mappings by key, so that equal rows give equal bytes; state keeps its own order instead, so
            that restored state iterates like the state that was stored.

    Raises:
        ConfigurationError: the type, or one inside it, cannot be stored; the message names where and why.
    """

    def __init__(self, type_: Any, where: str, *, canonical: bool = True) -> None:
        self.type, self.where = type_, where
        adapter = storable(type_, where)
        records = parts_in(adapter.core_schema)
        for record in records:
            check_record(record, where)
        self._is_doubtful = not has_exact_members(adapter.core_schema, where)
        self._is_recursive = _is_recursive(adapter.core_schema)
        schema = adjusted_schema(adapter.core_schema, canonical=canonical)
        self.schema: dict[str, Any] = adapter.json_schema(mode="validation")
        # Else classes of pydantic inside would be read and written by their own validators and serializers.
        self._validator = SchemaValidator(schema, _use_prebuilt=False)
        self._look = _looking_inside(schema)
        self._checker = SchemaValidator(self._look)
        # A class on the outside is compared with the value's; one with a definition may hold values of itself.
        self._outer: Any = adapter.core_schema["cls"] if adapter.core_schema["type"] in ("dataclass", "model") else None
        inner = {record["cls"] for record in records} - {self._outer}
        self._subclasses = tuple(cls.__subclasses__ for cls in inner)
        self._serializer = SchemaSerializer(schema, _use_prebuilt=False)
        self.encode: Callable[[T], bytes] = self._serializer.to_json

    def encode_checked(self, value: T) -> bytes:
        """The bytes of a value that has the storage's type at every depth, so that they are read as what it was.

        Raises:
            ContractError: it is or holds a value of another type, a time without zone or a number that is not finite,
                or is deeper than what can be read.
        """
        try:
            self._look_inside(value)
            data = checked_json(self.encode(value))
            if self._is_recursive and data.count(b"{") + data.count(b"[") > _DEEP:
                self._check_depth(data)
            return data
        except ValidationError as error:
            raise ContractError(f"{self.where}: {_refusal(error)}") from error
        except (PydanticSerializationError, ValueError) as error:
            raise ContractError(f"{self.where}: {shown(value)} cannot be stored: {error}") from error

    def _check_depth(self, data: bytes) -> None:
        try:
            from_json(data)  # its limit is that of `decode`, at a third of the cost
        except ValueError as error:
            why = f"{self.where}: it could not be read again: {error}"
            raise ContractError(f"{why}; keep it within 200 levels, such as in a tuple") from error

    def fitting(self, value: T) -> T | ContractError:
        """The value if it has the storage's type at every depth, else the error that says why not."""
        try:
            self._look_inside(value)
        except ValidationError as error:
            return ContractError(f"{self.where}: {_refusal(error)}")
        except ContractError as error:
            return error
        return value

    def _look_inside(self, value: T) -> None:
        """Checks the types; a field that its own validator gave another type has to be read back equal."""
        others: list[ValidationError] = []
        checker = self._checker
        if self._outer is not None and type(value) is not self._outer:
            checker = self._exact_checker
        for subclasses in self._subclasses:
            if subclasses():  # else the check of each record would cost a tenth more
                checker = self._exact_checker
        checker.validate_python(value, strict=True, context=others)
        if (others or self._is_doubtful) and not self._is_read_back(value):
            raise (
                others[0]
                if others
                else ContractError(f"{self.where}: {shown(value)} would not be read as it is written")
            )

    def _is_read_back(self, value: T) -> bool:
        try:
            return bool(self.decode(self.encode(value)) == value)
        except Exception:  # noqa: BLE001  # validators, serializers and comparisons of users raise what they like
            return False

    @cached_property
    def _exact_checker(self) -> SchemaValidator:
        return SchemaValidator(_exact(self._look))

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

    def shown(self, value: T) -> Any:
        """The value as JSON, as `json_of` makes it, in lists and dicts."""
        return from_json(json_of(self._serializer, value))

    def decode(self, data: bytes | str) -> T:
        """The value from its bytes.

        Raises:
            ContractError: the bytes are no value of this type.
        """
        try:
            return self._validator.validate_json(data)  # type: ignore[no-any-return]  # pydantic-core is untyped here
        except ValidationError as error:
            raise ContractError(f"{self.where}: stored bytes are no such value: {error}") from error


def json_of(serializer: SchemaSerializer, value: Any) -> bytes:
    """State or a row as JSON, as it is stored; a value of another type is written by its own type."""
    try:
        return serializer.to_json(value, warnings=False, fallback=str)
    except Exception:  # noqa: BLE001  # a serializer of users may take no such value
        return to_json(value, fallback=str)


def storable(type_: Any, where: str) -> TypeAdapter[Any]:
    """The pydantic adapter of a storable type.

    Raises:
        ConfigurationError: the type, or one inside it, cannot be stored; the message names where and why.
    """
    check_stored_type(type_, where)
    try:
        return TypeAdapter(type_)
    except Exception as error:  # pydantic raises several kinds for types it cannot express
        raise ConfigurationError(f"{where}: {type_!r} cannot be stored: {error}") from error


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a class in a schema holds values of itself."""
    definitions = schema["definitions"] if schema["type"] == "definitions" else ()
    left = {part["ref"]: {use["schema_ref"] for use in parts_in(part, ("definition-ref",))} for part in definitions}
    while flat := [ref for ref, uses in left.items() if not uses & left.keys()]:
        for ref in flat:
            del left[ref]
    return bool(left)


def _looking_inside(schema: Any) -> Any:
    """The schema for a check of values in memory: it looks inside instances, and runs no code of their classes."""
    done = with_parts(schema, _looking_inside)
    match done.get("type") if isinstance(done, dict) else None:
        case "dataclass" | "model":
            inside = _by_attributes(done)
        case "function-plain":
            inside = core_schema.any_schema()
        case "function-after" if done["schema"]["type"] == "enum":  # use_enum_values leaves defaults as members
            values = core_schema.literal_schema([member.value for member in done["schema"]["members"]])
            inside = core_schema.union_schema([done["schema"], values], mode="left_to_right")
        case "function-after" | "function-wrap" if done["schema"]["type"] != "chain":
            inside = core_schema.with_info_wrap_validator_function(_noted, done["schema"])
        case str() as type_ if type_ in OF_USERS:
            inside = done["schema"]  # values of a class stay that, and what runs before it leaves the type to it
        case "frozenset" | "set" if schema["items_schema"].keys() & {"schema", "schema_ref", "items_schema", "choices"}:
            items = core_schema.no_info_wrap_validator_function(lambda v, check: (check(v), v)[1], done["items_schema"])
            return {**done, "items_schema": items}  # the check of a class makes a dict, which no set takes
        case "decimal":
            whole = [core_schema.int_schema(), core_schema.no_info_plain_validator_function(Decimal), done]
            return core_schema.union_schema([done, core_schema.chain_schema(whole)], mode="left_to_right")
        case "datetime":
            return {**done, "tz_constraint": "aware"}
        case "tagged-union":
            return {**done, "choices": {tag: choice for tag, choice in done["choices"].items() if tag != UNTAGGED}}
        case _:
            return done
    return {**inside, "ref": done["ref"]} if "ref" in done else inside


def _noted(value: Any, handler: Any, info: Any) -> Any:
    """The value of a field with a validator; that it has another type than the field is noted in the context."""
    try:
        handler(value)
    except ValidationError as error:
        if isinstance(value, (bool, float)) or error.errors()[0]["type"] == "timezone_aware":
            raise
        info.context.append(error)
    return value


def _by_attributes(record: dict[str, Any]) -> Any:
    """The schema of instances of a class by their attributes: pydantic takes that of a model from the class instead."""
    named = _fields(record["schema"] if "fields" in record["schema"] else {"fields": {"root": record}})
    found = {name: core_schema.model_field(field["schema"]) for name, field in named if not field.get("init_only")}
    is_one = core_schema.is_instance_schema(record["cls"])
    return core_schema.chain_schema([is_one, core_schema.model_fields_schema(found, from_attributes=True)])


def _exact(look: Any) -> Any:
    """The check of values in memory, in which values of a subclass are no values of a class: they are read as that."""
    if not isinstance(look, dict) or look.get("type") != "is-instance":
        return with_parts(look, _exact)
    return core_schema.no_info_after_validator_function(partial(_itself, look["cls"]), look)


def _itself(cls: type, value: Any) -> Any:
    if type(value) is not cls:
        raise PydanticCustomError("subclass", f"Input should be an instance of {cls.__name__} itself")
    return value


def _refusal(error: ValidationError) -> str:
    """The first reason of a refusal, in the words that fields of plain types have for it."""
    first = error.errors(include_url=False)[0]
    value, why = first["input"], first["msg"]
    if first["type"] == "timezone_aware":
        return f"{shown(value)} has no time zone; rows and state hold aware times"
    held = first.get("ctx", {}).get("expected_tags") or why.removeprefix("Input should be ")
    return f"{shown(value)} is {type(value).__name__}, and the field holds {held}" if held != why else why


def check_time_format(record: Any, where: str) -> None:
    """Checks that a class, given by its schema, has its dates, times and durations written as text.

    Raises:
        ConfigurationError: they are written as numbers, and pydantic guesses the unit of these when it reads them.
    """
    setting = record.get("config", {}).get("ser_json_temporal", "iso8601")
    if setting != "iso8601":
        raise ConfigurationError(
            f"{where}: {record['cls'].__name__} has ser_json_temporal={setting!r}, and its times could be read as "
            f"others than they are written; remove it from the config of the class"
        )


def check_record(record: Any, where: str, *, by_name: bool = False) -> None:
    """Checks that the fields of a class, given by its schema, are read again as they are stored.

    Args:
        by_name: they are stored one by one under their names, and the class is called with them.

    Raises:
        ConfigurationError: they are not.
    """
    check_time_format(record, where)
    inner, config, cls = record["schema"], record.get("config", {}), record["cls"]
    while inner["type"] in OF_USERS:
        inner = inner["schema"]
    by_alias = config.get("serialize_by_alias", False) and not by_name
    fields = {name: field for name, field in _fields(inner) if not field.get("init_only")}
    written = {field.get("serialization_alias", name) if by_alias else name: name for name, field in fields.items()}
    for name, field in fields.items():
        if written.get(next((key for key in _keys(name, field, config) if key in written), "")) != name:
            step = "give it one alias= for both" if by_alias else "set validate_by_name=True in the config of its class"
            raise ConfigurationError(
                f"{where}: {cls.__name__}.{name} is not read by the name that it is written by, since it has an alias; "
                f"{step}, or remove that"
            )
        if not by_name and ("serialization_exclude_if" in field or field.get("serialization_exclude")):
            raise ConfigurationError(
                f"{where}: {cls.__name__}.{name} is excluded from what is written, and could not be read again; "
                f"remove exclude= or exclude_if="
            )
    if by_name:
        return
    if config.get("extra_fields_behavior") == "allow":
        raise ConfigurationError(f"{where}: {cls.__name__} has fields without a type; set extra='ignore'")
    if record.get("custom_init") and cls.__private_attributes__:
        raise ConfigurationError(
            f"{where}: {cls.__name__} is read without its __init__, but its private attributes may need that; "
            f"set {next(iter(cls.__private_attributes__))} in model_post_init"
        )


def _fields(inner: dict[str, Any]) -> list[tuple[str, Any]]:
    """The names and schemas of the fields in the schema inside that of a class."""
    fields = inner.get("fields", {})
    return list(fields.items()) if isinstance(fields, dict) else [(field["name"], field) for field in fields]


def _keys(name: str, field: dict[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The keys by which a field is read, in the order in which pydantic looks for them."""
    alias = field.get("validation_alias") if config.get("validate_by_alias", True) else None
    paths = [] if alias is None else [[alias]] if isinstance(alias, str) else alias
    paths = [paths] if paths and isinstance(paths[0], str) else paths
    found = [path[0] for path in paths if len(path) == 1]
    return [*found, name] if alias is None or config.get("validate_by_name") else found
