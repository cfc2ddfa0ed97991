"""The permitted changes of the JSON schema of a released event version, field by field."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from hashlib import blake2b
from typing import Any

from pydantic_core import core_schema

from leftfold.errors import ContractError, DomainError
from leftfold.model.messages import Command, Event
from leftfold.model.row_codec import StoredSchema
from leftfold.model.state_codec import Storage, storable
from leftfold.model.view import NUMBER_PATTERN

__all__ = ["breaks", "lost_errors", "message_schema", "state_form"]

_WORDS = frozenset({"title", "description", "examples", "deprecated"})
_DATA = frozenset({"default", "const", "enum"})
Schema = Mapping[str, Any]
_MOST = 100_000
_NULL = {"type": "null"}


class _Schema(StoredSchema):
    """pydantic's schemas say nothing about the digits of a Decimal."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        digits = {"maxDigits": schema.get("max_digits"), "decimalPlaces": schema.get("decimal_places")}
        return {**super().decimal_schema(schema), **{name: most for name, most in digits.items() if most is not None}}


def message_schema(message: type[Event | Command]) -> dict[str, Any]:
    """The schema of a stored message, with its key, without titles and descriptions; in it Decimal is not str."""
    found: dict[str, Any] = _wordless(
        message.model_json_schema(mode="validation", schema_generator=_Schema), names=False
    )
    rejects = {error.__name__: _needs(error) for error in getattr(message.__leftfold__, "rejects", ())}
    return {**found, "key": message.__leftfold__.key, **({"rejects": rejects} if rejects else {})}


def _needs(error: type[DomainError]) -> dict[str, bool]:
    """The fields of an error, and whether each has to be given."""
    fields = dataclasses.fields(error)  # type: ignore[arg-type]  # a DomainError is a dataclass
    return {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields}


def lost_errors(released: Schema, now: Schema) -> list[str]:
    """The errors of a command with which stored refusals cannot be read any more, and why."""
    known, lost = now.get("rejects", {}), list[str]()
    for name, fields in released.get("rejects", {}).items():
        if name not in known:
            lost.append(f"error {name} is in its rejects= no more")
        needed = [field for field, is_needed in known.get(name, {}).items() if is_needed and field not in fields]
        lost += [f"field {field} of error {name} is new and has no default" for field in sorted(needed)]
    return lost


def state_form(state: Storage[Any]) -> str:
    """The hash of the schema that a state is stored by: twelve hex digits."""
    schema = storable(state.type, state.where).json_schema(mode="validation", schema_generator=_Schema)
    text = json.dumps(_wordless(schema, names=False), sort_keys=True)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def breaks(released: Schema, now: Schema, *, is_stored: bool = True) -> list[str]:
    """The changes that make the present class unable to read, or to write, what was released; empty = compatible.

    A new field with a default breaks nothing: older events get the default and older readers ignore the field.

    Args:
        is_stored: messages without a field stay in the log, so that its default may not change.

    Raises:
        ContractError: one is no schema, or a short one that expands to more parts than any class has.
    """
    room = _Room()
    try:
        return list(_record("", _Side(released, room), _Side(now, room), is_stored=is_stored))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContractError(
            f"the schema of a message cannot be read ({type(error).__name__}: {str(error)[:200]}); take leftfold.lock "
            f"from version control"
        ) from error


class _Room:
    """The number of parts that may still be compared: nested references can expand to more than any memory holds."""

    def __init__(self) -> None:
        self._left = _MOST

    def spend(self) -> None:
        """Counts one more part."""
        self._left -= 1
        if self._left < 0:
            raise ContractError(
                f"the schema of a message has more than {_MOST:,} parts, its references resolved; take leftfold.lock "
                f"from version control"
            )


class _Side:
    """One of the two schemas, with its definitions."""

    def __init__(
        self, schema: Schema, room: _Room, root: Schema | None = None, around: frozenset[str] = frozenset()
    ) -> None:
        room.spend()
        self._room = room
        self.root = schema if root is None else root
        reference = schema.get("$ref", "").rpartition("/")[2]
        self.is_repeated, self._around = reference in around, around | {reference} if reference else around
        """Whether it is a class within itself."""
        self.schema: Schema = self.root["$defs"][reference] if reference else schema

    def field(self, name: str) -> _Side:
        """The schema of one of its fields."""
        return _Side(self.schema["properties"][name], self._room, self.root, self._around)

    def inner(self) -> _Side | None:
        """The schema of its items, or of what it is unless it is null; None where it has no such part."""
        whole = [part for part in self.schema.get("anyOf", ()) if part != _NULL]
        part = self.schema.get("items") if self.schema.get("type") == "array" else whole[0] if len(whole) == 1 else None
        return _Side(part, self._room, self.root, self._around) if isinstance(part, Mapping) else None

    def around(self) -> Any:
        """The schema without that part."""
        return {k: v for k, v in self.schema.items() if k not in ("items", "anyOf", "default")}, "anyOf" in self.schema

    def flat(self, seen: frozenset[str] = frozenset()) -> Any:
        """The schema with every reference replaced, so that two compare by meaning."""
        return _resolved(self.schema, self.root, seen, self._room)


def _record(path: str, old: _Side, new: _Side, *, is_stored: bool) -> Iterator[str]:
    before, after = old.schema.get("properties", {}), new.schema.get("properties", {})
    if is_stored and old.schema.get("additionalProperties") is False:
        for name in sorted(after.keys() - before.keys()):
            yield f"field {path}{name} is new, and older readers refuse fields that they do not know (extra='forbid')"
    for name in before.keys() - after.keys():
        yield f"field {path}{name} is removed, which older readers need"
    was_needed, needed = (frozenset(side.schema.get("required", ())) for side in (old, new))
    for name in sorted((after.keys() - before.keys()) & needed):
        yield f"field {path}{name} is new and has no default, so what was written before cannot be read"
    for name in sorted(before.keys() & after.keys()):
        yield from _field(f"{path}{name}", old.field(name), new.field(name), is_stored=is_stored)
        if name in needed - was_needed:
            yield f"field {path}{name} has lost its default, so what was written before may not be readable"
        elif is_stored and _default(before[name], after[name]) != _default(after[name], before[name]):
            yield f"field {path}{name} has another default, so what was written without it is read differently"


def _field(path: str, old: _Side, new: _Side, *, is_stored: bool) -> Iterator[str]:
    one, other = old.flat(), new.flat()
    if one == other:
        return
    if "properties" in old.schema and "properties" in new.schema:
        yield from _record(f"{path}.", old, new, is_stored=is_stored)
    elif (inner := old.inner()) is not None and (others := new.inner()) is not None and old.around() == new.around():
        if not (inner.is_repeated and others.is_repeated):
            yield from _field(path, inner, others, is_stored=is_stored)
    elif {**one, "default": None} != {**other, "default": None}:
        yield f"field {path} was {_said(one)} and is now {_said(other)}"


def _default(schema: Schema, other: Schema) -> Any:
    """The default of a field where another schema has one, too; what a factory makes is in no schema."""
    return schema.get("default") if "default" in schema and "default" in other else None


def _said(schema: Schema) -> str:
    kind = " or ".join(map(_said, schema.get("anyOf", ()))) or str(
        schema.get("format") or schema.get("type") or schema.get("enum") or "of any kind"
    )
    unsaid = ("type", "format", "default", "properties", "required", "anyOf")
    bounds = {k: v for k, v in schema.items() if k not in unsaid}
    return f"{kind} {bounds}" if bounds else kind


def _resolved(schema: Any, root: Schema, seen: frozenset[str], room: _Room) -> Any:
    room.spend()
    if isinstance(schema, list):
        return [_resolved(part, root, seen, room) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    if reference and reference not in seen:
        return _resolved(root["$defs"][reference], root, seen | {reference}, room)
    found = {key: _resolved(value, root, seen, room) for key, value in schema.items()}
    return {key: sorted(v, key=repr) if key == "enum" and isinstance(v, list) else v for key, v in found.items()}


def _is_word(key: str, value: Any) -> bool:
    return key in _WORDS or (key == "pattern" and str(value).startswith(NUMBER_PATTERN))


def _wordless(schema: Any, *, names: bool) -> Any:
    """The schema without titles and descriptions; keys within `properties` are names of fields, and values are data."""
    if isinstance(schema, list):
        return [_wordless(part, names=False) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = [key for key in schema if names or not _is_word(key, schema[key])]
    return {
        key: schema[key]
        if key in _DATA and not names
        else _wordless(schema[key], names=key in ("properties", "$defs") and not names)
        for key in kept
    }
