"""Views: a row type, a key and a fold, declared once; every engine folds them to equal rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any, Generic

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.model.keys import NO_ROW, KeyCodec, NoRowKey, is_view_name, item_type, key_type
from leftfold.model.messages import Event
from leftfold.model.row_codec import RowCodec
from leftfold.model.state_codec import Storage
from leftfold.model.typing import check_function, members, missing_arms

__all__ = ["NUMBER_PATTERN", "REFRESH_SECONDS", "FoldView", "SpreadView", "View"]

REFRESH_SECONDS = 60.0
"""Seconds between two refreshes of a view that Spark computes as a whole, unless `--every` says otherwise."""
NUMBER_PATTERN = "^(?!^[-+.]*$)"
"""The beginning of pydantic's own pattern for Decimal, which only some of its versions put into a schema."""

E = TypeVar("E", bound=Event)
Row = TypeVar("Row")
K = TypeVar("K", default=str)
Item = TypeVar("Item")


class View(Generic[Row, K]):
    """The definition of a view that readers and engines share: name, events, row codec, key codec, schema hash."""

    name: str
    version: int
    events: tuple[type[Event], ...]
    rows: RowCodec[Row]
    keys: KeyCodec[K]
    stream_keyed: bool = False
    evolve: Callable[[Row | None, Any], Row | None]
    """The row after one more item, from None for the first; None deletes the row. Only folded views have it."""
    folded: bool = True
    """Whether projectors and rebuilds fold it event by event; if not, its rows are computed from tables of events."""
    streamed: bool = False
    """Whether a stream processor of the user writes its rows, and neither projectors nor Spark do."""
    approximate: bool = False
    """Whether its rows may differ from a fold of the whole log, because late events are left out."""

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The categories whose events it reads, in order of first mention."""
        return tuple(dict.fromkeys(cls.__leftfold__.category for cls in self.events))

    @cached_property
    def hash(self) -> str:
        """The schema hash: twelve hex digits over row schema, indexes, key type, version, and categories if folded.

        The order of fields counts: checksums are over the fields of a row as they are stored.
        """
        schema = _meaning(self.rows.schema)
        parts = [schema, self.rows.plain, self.rows.indexes, self.keys.name, self.stream_keyed, self.version]
        parts += [sorted(self.categories)] if self.folded else []
        parts += self._definition()
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=6).hexdigest()

    def _definition(self) -> list[Any]:
        """Further parts of the definition that the rows depend on, as JSON."""
        return []

    def touches(self, event: Event, stream: str) -> Iterable[tuple[str, Any]]:
        """The encoded row keys an event changes, each with the item that is folded into that row.

        For a value that names no row, the key is NO_ROW and the item is the NoRowKey with the reason. In place of an
        item of another type than `each` declares is the ContractError that says so, which parks the row.
        """
        raise NotImplementedError

    @property
    def items(self) -> Storage[Any] | None:
        """The storage of items between an engine's stages; None when the item is the event itself."""
        return None

    def _named(self, name: str, events: object, row: type[Row], indexes: Sequence[str], version: int) -> None:
        if not is_view_name(name):
            raise ConfigurationError(f"view {name!r}: a name is letters, digits, _ and -, such as 'basket_summary'")
        if version < 1:
            raise ConfigurationError(f"view {name}: version={version} must be 1 or more")
        self.name, self.version = name, version
        self.events = members(events, Event, f"view {name}")
        self.rows = RowCodec(row, indexes, f"view {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, version={self.version})"


def _meaning(schema: Any) -> Any:
    """A JSON schema with the order of fields, and without titles, descriptions and pydantic's own pattern."""
    if isinstance(schema, dict):
        order = {"order": list(schema.get("properties", ()))} if schema.get("type") == "object" else {}
        return {key: _meaning(value) for key, value in schema.items() if not _is_silent(key, value)} | order
    return [_meaning(item) for item in schema] if isinstance(schema, list) else schema


def _is_silent(key: str, value: Any) -> bool:
    if not isinstance(value, str):
        return False  # a field of this name
    return key in ("title", "description") or (key == "pattern" and value.startswith(NUMBER_PATTERN))


class FoldView(View[Row, K], Generic[E, Row, K]):
    """A view with one row per key, folded event by event.

    Args:
        key: the row's key, a plain lambda on a field or a function with a return type; absent = the stream's key,
            and the fold then sees each stream in order. With a key, order holds only within a source partition, so
            the fold must give the same row for every interleaving (`leftfold.testing.check_interleavings` proves it).
        evolve: the row after one more event, from None for the first; None deletes the row. A mapping of a row that
            has been stored meanwhile is sorted by key, and its times are in UTC.
        indexes: fields that `find`, `between`, `top` and `count` can ask for.
        version: raised whenever `evolve` changes meaning.
    """

    evolve: Callable[[Row | None, E], Row | None]

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        evolve: Callable[[Row | None, E], Row | None],
        key: Callable[[E], K] | None = None,
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        check_function(evolve, f"view {name}: evolve", "row", "event")
        if key is not None:
            check_function(key, f"view {name}: key", "event")
        self.evolve, self.key, self.stream_keyed = evolve, key, key is None
        self.keys = KeyCodec(key_type(key, self.events, f"view {name}") if key else str, f"view {name}")
        if key is None and len(self.categories) > 1:
            raise ConfigurationError(
                f"view {name}: it reads several categories ({', '.join(self.categories)}), so no stream key is its "
                f"own; add key="
            )
        for missing in missing_arms(evolve, 1, self.events):
            raise ConfigurationError(
                f"view {name}: {evolve.__name__} has no arm for {missing}; add: case {missing}(): ... or case _: ..."
            )

    def touches(self, event: Event, stream: str) -> Iterable[tuple[str, Any]]:
        """The row key of this event, with the event as the item."""
        if self.key is None:
            return ((self.keys.encode(stream), event),)  # type: ignore[arg-type]  # it is keyed by text
        key = self.key(event)  # type: ignore[arg-type]  # its class is one of `events`
        try:
            return ((self.keys.encode(key), event),)
        except NoRowKey as error:
            return ((NO_ROW, error),)


class SpreadView(View[Row, K]):
    """A view in which one event changes many rows: `each` yields their keys and items.

    Args:
        each: a function with the return type `Iterable[tuple[K, Item]]`; Item must be storable.
        evolve: the row after one more item; order holds only within a source partition, as for a keyed FoldView.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        each: Callable[[E], Iterable[tuple[K, Item]]],
        evolve: Callable[[Row | None, Item], Row | None],
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        check_function(each, f"view {name}: each", "event")
        check_function(evolve, f"view {name}: evolve", "row", "item")
        key, item = item_type(each, f"view {name}")
        self.keys = KeyCodec(key, f"view {name}")
        self._items: Storage[Item] = Storage(item, f"view {name}: each")
        self.each, self.evolve = each, evolve

    @property
    def items(self) -> Storage[Any]:
        """The storage of items between an engine's stages."""
        return self._items

    def touches(self, event: Event, stream: str) -> Iterable[tuple[str, Any]]:
        """The row keys this event changes, in the order of `each`."""
        encode, fitting = self.keys.encode, self._items.fitting
        pairs = [(key, fitting(item)) for key, item in self.each(event)]  # type: ignore[arg-type]  # it is in `events`
        try:
            return [(encode(key), item) for key, item in pairs]
        except NoRowKey:
            return [self._pair(key, item) for key, item in pairs]

    def _pair(self, key: K, item: Any) -> tuple[str, Any]:
        try:
            return self.keys.encode(key), item
        except NoRowKey as error:
            return NO_ROW, error
