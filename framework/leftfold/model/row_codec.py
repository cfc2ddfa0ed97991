"""The encoding of rows as fields of a Redis hash, and of index entries that sort like their values."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property
from hashlib import blake2b
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaSerializer, from_json, to_json, to_jsonable_python

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.messages import adjusted_schema, parts_in
from leftfold.model.state_codec import Storage, check_record, json_of, storable
from leftfold.model.typing import is_record, record_fields
from leftfold.safety import shown

__all__ = ["CHECKSUM_MODULUS", "Fields", "MembersByText", "RowCodec", "StoredSchema", "ordered", "value_of_text"]


_BIAS = 500_000
_NINES = str.maketrans("0123456789", "9876543210")


def ordered(value: Any) -> str:
    """The index entry of a value as sortable text; None sorts first.

    Raises:
        ContractError: the value's type has no order here.
    """
    match value:
        case None:
            return "-"
        case bool():
            return "=1" if value else "=0"
        case Enum():
            return ordered(value.value)
        case int():
            return ordered(Decimal(value))
        case Decimal() if value.is_finite() and abs(value.adjusted()) < _BIAS:
            return "=" + _number(value)
        case datetime():
            try:
                return "=" + value.astimezone(UTC).isoformat(timespec="microseconds")
            except OverflowError as error:
                raise ContractError(f"{value!r} is no time in UTC: {error}") from error
        case date():
            return "=" + value.isoformat()
        case str():
            return "=" + value
        case UUID():
            return "=" + str(value)
    raise ContractError(f"{value!r} cannot be indexed; index str, numbers, times, bool, Enum or UUID fields")


def value_of_text(type_: Any, text: str) -> Any:
    """The value of an indexed field from text; a member of an Enum is written as its value is in JSON, without quotes.

    Raises:
        ValueError: it is no value of the type.
    """
    for kind in (type_, *get_args(type_)):
        if isinstance(kind, type) and issubclass(kind, Enum):
            for member in kind:
                written = to_jsonable_python(member.value)
                if text == (written if isinstance(written, str) else to_json(written).decode()):
                    return member
    return TypeAdapter(type_).validate_strings(text)


def _number(value: Decimal) -> str:
    """A number as sortable text: sign, biased exponent and digits; negative numbers have both complemented."""
    if not value:
        return "1"
    sign, digits, _ = value.as_tuple()
    exponent = f"{value.adjusted() + _BIAS:06d}"
    mantissa = "".join(map(str, digits)).rstrip("0")
    return f"2{exponent}{mantissa}" if not sign else "0" + (exponent + mantissa).translate(_NINES) + "~"


Row = TypeVar("Row")
T = TypeVar("T", str, bytes)
Fields = tuple[bytes, ...]
CHECKSUM_MODULUS = 1 << 128


def _time(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ContractError(f"{value!r} has no time zone; rows hold aware times")
    return value.astimezone(UTC).isoformat().encode()


def _of_type(write: Callable[[Any], bytes], *types: type, but: tuple[type, ...] = ()) -> Callable[[Any], bytes]:
    """A writer of values of these types alone: another value could not be read again as what it was."""

    def checked(value: Any) -> bytes:
        if not isinstance(value, types) or isinstance(value, but):
            raise ContractError(f"{value!r} is {type(value).__name__}, and the field holds {types[0].__name__}")
        return write(value)

    return checked


def _enum_writer(type_: type[Enum]) -> Callable[[Any], bytes]:
    def write(value: Any) -> bytes:
        if not isinstance(value, type_):
            raise ContractError(f"{value!r} is {type(value).__name__}, and the field holds {type_.__name__}")
        return str(value.value).encode()

    return write


def _whole(value: Any) -> bytes:
    try:
        if value is True or value is False:  # it has an index, and sorts unlike the number that it would be read as
            raise TypeError
        return b"%d" % operator.index(value)
    except TypeError as error:
        raise ContractError(f"{value!r} is {type(value).__name__}, and the field holds int") from error


def _exact(value: Any) -> bytes:
    if isinstance(value, Decimal) and not value.is_finite():
        raise ContractError(f"{value!r} is {type(value).__name__}, and the field holds a finite number")
    return str(value).encode()


_WRITE: dict[type, Callable[[Any], bytes]] = {
    str: str.encode,
    int: _whole,
    bool: _of_type(lambda v: b"true" if v else b"false", bool),
    Decimal: _of_type(_exact, Decimal, int, but=(bool,)),
    datetime: _time,
    date: _of_type(lambda v: v.isoformat().encode(), date, but=(datetime,)),
    UUID: _of_type(lambda v: str(v).encode(), UUID),
}
_READ: dict[type, Callable[[bytes], Any]] = {
    str: bytes.decode,
    int: int,
    bool: lambda b: b == b"true",
    Decimal: lambda b: Decimal(b.decode()),
    datetime: lambda b: datetime.fromisoformat(b.decode()),
    date: lambda b: date.fromisoformat(b.decode()),
    UUID: lambda b: UUID(b.decode()),
}


class MembersByText(dict[T, Enum]):
    """The members of an Enum by the texts of their values; looking up another text is a ValueError.

    Raises:
        ConfigurationError: it is a Flag, or two of its members have one text.
    """

    def __init__(self, type_: type[Enum], where: str, text: Callable[[Enum], T]) -> None:
        self._type = type_
        if issubclass(type_, Flag):
            raise ConfigurationError(
                f"{where}: {type_.__name__} is a Flag, and several of its members together are none of them; "
                f"use int or an Enum"
            )
        for member in type_:
            other = self.setdefault(text(member), member)
            if other is not member:
                raise ConfigurationError(
                    f"{where}: {other} and {member} are both written as {str(member.value)!r}; "
                    f"give them values with different texts"
                )

    def __missing__(self, text: T) -> Enum:
        raise ValueError(f"{text!r} is no value of {self._type.__name__}")


class StoredSchema(GenerateJsonSchema):
    """JSON schemas with the names that fields are stored by: aliases only where a class serializes by alias."""

    row: type | None = None
    """A class whose fields are stored one by one, each by its own name."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        """The JSON schema of a part; the fields of a class have the names that its config gives them."""
        if schema["type"] not in ("model", "dataclass", "typed-dict"):
            return super().generate_inner(schema)
        by_alias = schema.get("config", {}).get("serialize_by_alias", False) and schema.get("cls") is not self.row
        outer, self.by_alias = self.by_alias, by_alias
        found = super().generate_inner(schema)
        self.by_alias = outer
        return found

    def _get_alias_name(self, field: Any, name: str) -> str:
        """The name by which a field is written: the first of its aliases for reading may be another one."""
        return str(field.get("serialization_alias", name))


class RowCodec(Generic[Row]):
    """A codec for rows of one dataclass or model as a tuple of field values, in field order.

    Raises:
        ConfigurationError: the row is no frozen record of storable fields, has none, or an index names no plain one.
    """

    def __init__(self, row: type[Row], indexes: Sequence[str], where: str) -> None:
        if not is_record(row):
            raise ConfigurationError(f"{where}: row={row!r} must be a frozen dataclass or a frozen pydantic model")
        whole = storable(row, f"{where}: row")
        for record in parts_in(whole.core_schema):
            if record["cls"] is row and hasattr(row, "__pydantic_validator__"):
                check_record(record, f"{where}: row", by_name=True)
        _check_arguments(row, f"{where}: row")
        self.row, self.where = row, where
        generator = type("RowSchema", (StoredSchema,), {"row": row})
        self.schema: dict[str, Any] = whole.json_schema(mode="validation", schema_generator=generator)
        types = record_fields(row)
        if not types:
            raise ConfigurationError(
                f"{where}: row={row.__name__} has no fields, and a row is stored by its fields; declare at least one"
            )
        self.names = tuple(types)
        self.columns = tuple(name.encode() for name in self.names)
        self.plain = tuple(name for name, type_ in types.items() if _is_text(type_))
        """The fields that are stored as text of their own, and not as JSON."""
        self._write: list[tuple[str, Callable[[Any], bytes]]] = []
        self._read: list[Callable[[bytes], Any]] = []
        for name, type_ in types.items():
            write, read = _codec(type_, f"{where}: row {row.__name__}.{name}")
            self._write.append((name, write))
            self._read.append(read)
        if isinstance(indexes, str):
            raise ConfigurationError(f"{where}: indexes={indexes!r} is one field; write indexes=[{indexes!r}]")
        for index in indexes:
            if index not in types:
                raise ConfigurationError(f"{where}: index {index!r} is no field of {row.__name__} ({', '.join(types)})")
            if not _is_plain(types[index]):
                raise ConfigurationError(
                    f"{where}: {row.__name__}.{index} cannot be indexed; index fields of str, int, bool, Decimal, "
                    f"datetime, date, UUID, or of an Enum of such values, no two of which are alike"
                )
        self.indexes = tuple(indexes)
        self.index_types: Mapping[str, Any] = {index: types[index] for index in indexes}
        self._by_column = dict(zip(self.columns, zip(self.names, self._read, strict=True), strict=True))

    def encode(self, row: Row) -> Fields:
        """The row's field values, in the order of `columns`.

        Raises:
            ContractError: a field holds a value of another type, or the row is of a subclass, and would be read as its
                base class.
        """
        if type(row) is not self.row and isinstance(row, self.row):
            raise ContractError(f"{shown(row)} is {type(row).__name__}, and the view holds {self.row.__name__} itself")
        try:
            return tuple([write(getattr(row, name)) for name, write in self._write])
        except Exception as error:
            if (refusal := self._refused(row)) is not None:
                raise refusal from error
            raise

    def _refused(self, row: Row) -> ContractError | None:
        """The refusal of the first field that cannot be written."""
        for name, write in self._write:
            value = getattr(row, name)
            try:
                write(value)
            except Exception as error:  # noqa: BLE001  # whatever it is, the row cannot be stored
                if isinstance(error, TypeError):  # of `str.encode`, which takes nothing else
                    error = ContractError(f"{shown(value)} is {type(value).__name__}, and the field holds str")
                why = str(error)
                return ContractError(why if why.startswith(self.where) else f"{self.row.__name__}.{name}: {why}")
        return None

    def decode(self, fields: Mapping[bytes, bytes]) -> Row:
        """The row from the fields of a Redis hash; unknown fields are ignored.

        Raises:
            ContractError: a field is missing or unreadable.
        """
        try:
            return self.row(**{name: read(fields[column]) for column, (name, read) in self._by_column.items()})
        except KeyError as error:
            raise ContractError(f"{self.where}: the stored row lacks field {error}; rebuild the view") from error
        except (ValueError, ArithmeticError, TypeError) as error:  # TypeError: its class does not take these fields
            raise ContractError(f"{self.where}: the stored row is unreadable: {error}; rebuild the view") from error

    @cached_property
    def _serializer(self) -> SchemaSerializer:
        schema = adjusted_schema(storable(self.row, self.where).core_schema, canonical=True)
        return SchemaSerializer(schema, _use_prebuilt=False)

    def to_json(self, row: Row) -> bytes:
        """The row as one JSON object, for readers outside: sets and mappings sorted, unions tagged as in storage."""
        return json_of(self._serializer, row)

    def shown(self, row: Row | None) -> Any:
        """The object that `to_json` writes; None for no row."""
        return None if row is None else from_json(self.to_json(row))

    def index_entries(self, row: Row) -> tuple[str, ...]:
        """The row's sortable value per index, in the order of `indexes`."""
        return tuple([ordered(getattr(row, name)) for name in self.indexes])

    @staticmethod
    def digest(key: str, fields: Fields) -> int:
        """The row's part of its bucket's checksum: blake2b-128 over the key and the length-prefixed fields."""
        text = key.encode()
        parts = [b"%d:%b" % (len(part), part) for part in (text, *fields)]
        return int.from_bytes(blake2b(b"".join(parts), digest_size=16).digest(), "big")


def _check_arguments(row: type, where: str) -> None:
    """Checks that the class of a row is called with its fields, all of them and nothing else."""
    if not dataclasses.is_dataclass(row):
        return
    for field in dataclasses.fields(row):
        if not field.init:
            raise ConfigurationError(
                f"{where} {row.__name__}.{field.name} has init=False, and a row is read by calling its class with all "
                f"fields; make it a property"
            )
    for name, hint in get_type_hints(row).items():
        if hint is dataclasses.InitVar or isinstance(hint, dataclasses.InitVar):
            raise ConfigurationError(
                f"{where} {row.__name__}.{name} is an InitVar, which is not stored, and a row is read by calling its "
                f"class with its fields alone; make it a field"
            )


def _is_plain(type_: Any) -> bool:
    if get_origin(type_) in (Union, UnionType):
        return all(map(_is_plain, get_args(type_)))
    if isinstance(type_, type) and issubclass(type_, Enum):
        return all(map(_is_ordered, type_)) and len(set(map(ordered, type_))) == len(type_)
    return type_ in _WRITE or type_ is NoneType


def _is_ordered(value: Any) -> bool:
    try:
        ordered(value)
    except ContractError:
        return False
    return True


def _is_text(type_: Any) -> bool:
    return type_ in _WRITE or (isinstance(type_, type) and issubclass(type_, Enum))


def _codec(type_: Any, where: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if isinstance(type_, type) and issubclass(type_, Enum):
        return _enum_writer(type_), MembersByText(type_, where, _enum_writer(type_)).__getitem__
    if type_ in _WRITE:
        return _WRITE[type_], _READ[type_]
    storage: Storage[Any] = Storage(type_, where)
    return storage.encode_checked, storage.decode
