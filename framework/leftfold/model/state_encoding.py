"""The encoding of state and rows as bytes: checked types, canonical JSON, unions tagged by class name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator, core_schema

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.messages import OF_USERS, UNTAGGED, adjusted_schema, records_in, with_parts
from leftfold.safety import shown

__all__ = ["Storage", "check_record", "checked_json", "number_in", "time_at", "time_in", "version_in"]


_MOST = 1 << 63
_LONGEST = 19
_DIGITS = 4300
"""Of the longest whole number that Python and pydantic read."""


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
        self.type, self.where = type_, where
        adapter = storable(type_, where)
        for record in records_in(adapter.core_schema):
            check_record(record, where)
        schema = adjusted_schema(adapter.core_schema, canonical=canonical)
        self.schema: dict[str, Any] = adapter.json_schema(mode="validation")
        # Else classes of pydantic inside would be read and written by their own validators and serializers.
        self._validator = SchemaValidator(schema, _use_prebuilt=False)
        self._checker = SchemaValidator(_looking_inside(schema))
        self._serializer = SchemaSerializer(schema, _use_prebuilt=False)
        self.encode: Callable[[T], bytes] = self._serializer.to_json

    def encode_checked(self, value: T) -> bytes:
        """The bytes of a value that has the storage's type at every depth, so that they are read as what it was.

        Raises:
            ContractError: it is or holds a value of another type, a time without zone or a number that is not finite.
        """
        try:
            self._look_inside(value)
            return checked_json(self.encode(value))
        except ValidationError as error:
            raise ContractError(f"{self.where}: {_refusal(error)}") from error
        except (PydanticSerializationError, ValueError) as error:
            raise ContractError(f"{self.where}: {shown(value)} cannot be stored: {error}") from error

    def fitting(self, value: T) -> T | ContractError:
        """The value if it has the storage's type at every depth, else the error that says why not."""
        try:
            self._look_inside(value)
        except ValidationError as error:
            return ContractError(f"{self.where}: {_refusal(error)}")
        return value

    def _look_inside(self, value: T) -> None:
        """Checks the types; a field that its own validator gave another type has to be read back equal."""
        others: list[ValidationError] = []
        self._checker.validate_python(value, strict=True, context=others)
        try:
            is_read_back = not others or self.decode(self.encode(value)) == value
        except Exception:  # noqa: BLE001  # validators, serializers and comparisons of users raise what they like
            is_read_back = False
        if not is_read_back:
            raise others[0]

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


def storable(type_: Any, where: str) -> TypeAdapter[Any]:
    """The pydantic adapter of a storable type.

    Raises:
        ConfigurationError: the type, or one inside it, cannot be stored; the message names where and why.
    """
    _check(type_, where, set())
    try:
        return TypeAdapter(type_)
    except Exception as error:  # pydantic raises several kinds for types it cannot express
        raise ConfigurationError(f"{where}: {type_!r} cannot be stored: {error}") from error


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


def _refusal(error: ValidationError) -> str:
    """The first reason of a refusal, in the words that fields of plain types have for it."""
    first = error.errors(include_url=False)[0]
    value, why = first["input"], first["msg"]
    if first["type"] == "timezone_aware":
        return f"{shown(value)} has no time zone; rows and state hold aware times"
    held = first.get("ctx", {}).get("expected_tags") or why.removeprefix("Input should be ")
    return f"{shown(value)} is {type(value).__name__}, and the field holds {held}" if held != why else why


def check_record(record: Any, where: str, *, by_name: bool = False) -> None:
    """Checks that the fields of a class, given by its schema, are read again as they are stored.

    Args:
        by_name: they are stored one by one under their names, and the class is called with them.

    Raises:
        ConfigurationError: they are not.
    """
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
        _check_mapping(type_, where, seen)
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


def _check_mapping(type_: Any, where: str, seen: set[type]) -> None:
    for arg in get_args(type_):
        _check(arg, where, seen)
    if not all(map(_is_key, get_args(type_)[:1])):
        raise ConfigurationError(
            f"{where}: the keys of {type_} would not be read as they are written; use keys of str, int, Decimal, "
            f"date, datetime, UUID or an Enum of texts, or a tuple of pairs"
        )


def _is_key(type_: Any) -> bool:
    """Whether the text of a key in JSON is read as that key."""
    if hasattr(type_, "__value__"):
        return _is_key(type_.__value__)
    if get_origin(type_) is Annotated:
        return _is_key(get_args(type_)[0])
    if get_origin(type_) is Literal:
        return all(isinstance(one, str) for one in get_args(type_))
    if isinstance(type_, type) and issubclass(type_, Enum):
        return all(isinstance(member.value, str) for member in type_)
    return type_ in SCALARS and type_ is not NoneType


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
    if len(records) > 1 and any(issubclass(r, RootModel) for r in records):
        raise ConfigurationError(f"{where}: a RootModel has no place for the tag of a union; use a model with a field")
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
