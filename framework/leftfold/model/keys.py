"""Row keys as text, the partitioner, and the names of topics and groups; a change needs a migration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import product
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote
from uuid import UUID

from pydantic import BaseModel

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.row_codec import MembersByText
from leftfold.model.typing import record_fields

__all__ = [
    "NO_ROW", "KeyCodec", "NoRowKey", "commands", "events", "is_view_name", "item_type", "key_type", "murmur2",
    "partition_of", "state",
]  # fmt: skip


K = TypeVar("K")
NO_ROW = "(no row)"
"""The key in place of an event that names no row, so that it can be parked; no key is encoded so."""
_SAFE = re.compile(r"[A-Za-z0-9_.~-]+")
_KINDS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: int,
    UUID: UUID,
    Decimal: Decimal,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
}

_ESCAPED, _TO_ESCAPE = re.compile("%2F|%25"), re.compile("/|%(?=2F|25)")


class NoRowKey(ContractError):
    """A value of the key's type that names no row: an empty text, or one that UTF-8 cannot hold."""


class KeyCodec(Generic[K]):
    """A codec for row keys of one type; a tuple's parts are joined by `/`.

    Args:
        type_: str, int, UUID, Decimal, date, datetime, an Enum, or a tuple of these. where: named in errors.

    Raises:
        ConfigurationError: the type is none of these, a Flag, or an Enum with two members of one text.
    """

    def __init__(self, type_: Any, where: str) -> None:
        self.composite = get_origin(type_) is tuple
        self.parts: tuple[Any, ...] = get_args(type_) if self.composite else (type_,)
        for part in self.parts:
            if part not in _KINDS and not (isinstance(part, type) and issubclass(part, Enum)):
                raise ConfigurationError(
                    f"{where}: a key of {part} cannot be written; use str, int, UUID, Decimal, date, datetime, "
                    f"an Enum or a tuple[...] of these, and say it if no key is None: def key(event: ...) -> str: ..."
                )
        self._read = [_reader(part, f"{where}: key") for part in self.parts]
        self.name = "/".join(part.__name__ for part in self.parts)
        self.plain = self.parts == (str,) and not self.composite

    def encode(self, key: K) -> str:
        """The key as text that holds only letters, digits and `_.~-%/`; times are in UTC, so equal ones are one key.

        Raises:
            NoRowKey: a part is empty, or a text that UTF-8 cannot hold. ContractError: the key is of another type, or
                holds a time without a zone.
        """
        if self.plain and isinstance(key, str):
            return _quoted(key)
        parts: Sequence[Any] = key if self.composite and isinstance(key, tuple) else (key,)
        if len(parts) != len(self.parts):
            raise ContractError(f"{key!r} is no key of ({self.name})")
        return "/".join(_quoted(self._text(part, kind)) for part, kind in zip(parts, self.parts, strict=True))

    def _text(self, part: Any, kind: type) -> str:
        if not isinstance(part, kind) or isinstance(part, bool):
            raise self._refused(part, kind)
        match part:
            case Enum():
                return str(part.value)
            case datetime() if kind is date:
                raise self._refused(part, kind)
            case datetime():
                return _in_utc(part)
            case date():
                return part.isoformat()
            case _:
                return str(part)

    def _refused(self, part: Any, kind: type) -> ContractError:
        return ContractError(f"{part!r} is no {kind.__name__}, which this view's key is made of ({self.name})")

    def decode(self, text: str) -> K:
        """The key from its text.

        Raises:
            ContractError: it is the text of no such key.
        """
        try:
            return self._key(text)
        except (ValueError, ArithmeticError) as error:
            raise ContractError(f"the stored key {text!r} is no {self.name}: {error}; rebuild the view") from error

    def _key(self, text: str) -> K:
        values = [read(unquote(part)) for part, read in zip(text.split("/"), self._read, strict=True)]
        return tuple(values) if self.composite else values[0]  # type: ignore[return-value]  # by the key's own type

    def typed(self, encoded: str) -> str:
        """The text that a person writes for an encoded key, and that `read` takes."""
        *before, last = map(unquote, encoded.split("/"))
        return "/".join([*(_TO_ESCAPE.sub(lambda found: quote(found[0], safe=""), part) for part in before), last])

    def read(self, text: str | Sequence[str]) -> K:
        """The key that a person writes, as a text with / between several parts, or as these parts.

        A / within one of them, except the last, is written %2F.

        Raises:
            ValueError: it is no such key.
        """
        if isinstance(text, str):
            *before, last = text.split("/", len(self.parts) - 1) if self.composite else [text]
            parts: Sequence[str] = [*(_ESCAPED.sub(lambda found: unquote(found[0]), part) for part in before), last]
        else:
            parts = text
        try:
            if len(parts) != len(self.parts):
                raise ValueError(f"it has {len(parts)} of {len(self.parts)} parts")
            key = self._key("/".join(quote(part, safe="") for part in parts))
            for part in key if isinstance(key, tuple) else (key,):
                if isinstance(part, datetime) and part.tzinfo is None:
                    raise ValueError(f"{part.isoformat()} has no time zone; write {part.isoformat()}Z for UTC")
        except (ValueError, ArithmeticError) as error:
            raise ValueError(f"it is no {self.name}: {error}") from error
        return key


def _reader(kind: type, where: str) -> Callable[[str], Any]:
    if issubclass(kind, Enum):
        return MembersByText(kind, where, lambda member: str(member.value)).__getitem__
    return _KINDS[kind]


def _in_utc(time: datetime) -> str:
    if time.utcoffset() is None:
        raise ContractError(f"{time!r} has no time zone; keys hold aware times")
    try:
        return time.astimezone(UTC).isoformat()
    except OverflowError as error:
        raise ContractError(f"{time!r} is no time in UTC: {error}") from error


def _quoted(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    if not text:
        raise NoRowKey("a row key may not be empty")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise NoRowKey(f"{text[:100]!r} is no text that UTF-8 can hold") from error


class _Probe:
    """A stand-in for an event that records which field a plain `lambda e: e.field` reads."""

    def __init__(self, field: str = "") -> None:
        self.field = field

    def __getattr__(self, name: str) -> _Probe:
        if self.field or name.startswith("__"):
            raise AttributeError(name)
        return _Probe(name)


def key_type(key: Callable[..., Any], records: Iterable[type], where: str) -> Any:
    """The type that a key function returns: from its annotation, or from the fields a plain lambda reads.

    Args:
        records: the classes it is called with: events, or the row of a query.
    """
    returns = get_type_hints(key).get("return") if hasattr(key, "__annotations__") else None
    if returns is not None:
        return returns
    fields, read, names = {cls: _field_types(cls) for cls in records}, None, [""]
    with suppress(Exception):  # a lambda that does more than read fields
        read = key(_Probe())
        names = [field.field for field in (read if isinstance(read, tuple) else (read,))]
    for (cls, known), name in product(fields.items(), names):
        if name and name not in known and not hasattr(cls, name):
            has = ", ".join(known) or "no fields"
            raise ConfigurationError(f"{where}: key= reads {name}, which {cls.__name__} does not have (it has {has})")
    is_plain = all(name in known for known in fields.values() for name in names)
    types = {tuple(known[name] for name in names) for known in fields.values()} if is_plain else set()
    if len(types) != 1:
        why = f": the events disagree on {', '.join(names)}" if types else ""
        raise ConfigurationError(
            f"{where}: cannot tell the type of its key{why}; write the key as a function with a return type: "
            f"def key(event: ...) -> str: ..."
        )
    (found,) = types
    return tuple[found] if isinstance(read, tuple) else found[0]  # type: ignore[valid-type]  # made at run time


def _field_types(cls: type) -> Mapping[str, Any]:
    if issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    return record_fields(cls)


def item_type(each: Callable[..., Any], where: str) -> tuple[Any, Any]:
    """The key and item types of `each`, from its annotation `-> Iterable[tuple[K, Item]]`."""
    function = each
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(inspect.unwrap(function)):
        function = type(function).__call__
    returns = get_type_hints(function).get("return")
    for arg in get_args(returns):
        if get_origin(arg) is tuple and len(get_args(arg)) == 2:
            key, item = get_args(arg)
            return key, item
    raise ConfigurationError(
        f"{where}: each= needs a function that says what it yields: "
        f"def {getattr(each, '__name__', 'each')}(event: ...) -> Iterable[tuple[str, Line]]: ..."
    )


def commands(category: str) -> str:
    """The topic of a category's commands."""
    return f"{category}.commands"


def events(category: str) -> str:
    """The topic of a category's events; it is not compacted and has no retention limit."""
    return f"{category}.events"


def state(category: str, version: int) -> str:
    """The compacted topic of a category's stream states, one per decider version."""
    return f"{category}.state.v{version}"


def dead(category: str) -> str:
    """The topic of a category's dead letters: commands that no worker can decide."""
    return f"{category}.dead"


def skipped(category: str) -> str:
    """The compacted topic of events that workers skip; created when the first event is marked as skipped."""
    return f"{category}.skipped"


def replies(app: str) -> str:
    """The topic of answers to an App's clients."""
    return f"{app}.replies"


def group(app: str, category: str) -> str:
    """The consumer group of the workers of a category."""
    return f"leftfold.{app}.{category}"


def is_group_of(name: str, category: str) -> bool:
    """Whether a consumer group is that of workers of a category, in an App of any name."""
    return re.fullmatch(rf"leftfold\.[^.]+\.{re.escape(category)}", name) is not None


def time(process: str) -> str:
    """The topic in which the routers of a process publish watermarks."""
    return f"{process}.time"


def reacting(app: str, reaction: str) -> str:
    """The consumer group of a reaction's workers; its committed offsets are what has been handled."""
    return f"leftfold.{app}.{reaction}.reaction"


def routing(app: str, process: str) -> str:
    """The consumer group of the routers of a process."""
    return f"leftfold.{app}.{process}.router"


def begun(reaction: str) -> str:
    """The compacted topic with a reaction's start offsets and the parked events that were sent again."""
    return f"{reaction}.begun"


def streaming(app: str, stream: str, *generations: str) -> str:
    """The consumer group of a user's stream processor, and the prefix of its changelog topics."""
    return ".".join(["leftfold", app, stream, "stream", *generations])


def is_view_name(name: str) -> bool:
    """Whether a view may have this name: it is part of Redis keys and of what operators type."""
    return bool(name) and all(c.isalnum() or c in "_-" for c in name)


def projectors(view: str, hash_: str) -> str:
    """The membership group of the projectors of a view that write the same generations, those of a schema hash."""
    return f"tails:{view}:{hash_}"


def coders(view: str, hash_: str, fold: str) -> str:
    """The membership group of the projectors of a view that fold with the same code."""
    return f"tails:{view}:{hash_}:{fold}"


def streams(view: str, hash_: str) -> str:
    """The membership group of a stream processor that writes a view of a schema hash."""
    return f"streams:{view}:{hash_}"


def rebuilds(view: str) -> str:
    """The membership group of rebuilds of a view."""
    return f"rebuilds:{view}"


_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The positive murmur2 of the bytes (org.apache.kafka.common.utils.Utils.murmur2, sign bit cleared)."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little")
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    rest = length & 3
    if rest:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return murmur2(key) % partitions
