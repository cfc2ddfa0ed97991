"""Typed reads of views: what production and the memory world hand to queries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.description import Description, describe
from leftfold.engine.places import bucket_of
from leftfold.errors import ConfigurationError, ContractError, StaleViewError, ViewNotBuilt
from leftfold.flush import Generation, Mark, Parked, Snapshot
from leftfold.ordered import ordered
from leftfold.partitioner import partition_of
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Entry", "Page", "Reader", "Views"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


@dataclass(frozen=True)
class Entry(Generic[Row]):
    """A row with where it stands: its stream's version (None when not stream-keyed), its bucket's position, and
    why it is parked, if it is.
    """

    row: Row | None
    version: int | None
    position: Position
    parked: Parked | None


@dataclass(frozen=True)
class Page(Generic[Row, K]):
    """Some rows of a scan in bucket and key order; `cursor` continues it, None at the end."""

    rows: tuple[tuple[K, Row], ...]
    cursor: str | None


class Reader(Generic[Row, K]):
    """Reads one view. Every read follows the live generation of this code's schema hash, or a pinned one."""

    def __init__(
        self, view: View[Row, K], store: ViewStore, poll: Callable[[float], None] = time.sleep, name: str = ""
    ) -> None:
        self.view, self._store, self._poll, self._name = view, store, poll, name
        self._generation: Generation | None = None

    def get(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Row | None:
        """The row of a key, None when there is none.

        Args:
            after: wait until everything up to here is folded in (a receipt's position). timeout: seconds to wait.

        Raises:
            StaleViewError: the view did not get there in time.
            ViewNotBuilt: nothing is live for this code's schema.
        """
        return self.entry(key, after=after, timeout=timeout).row

    async def aget(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Row | None:
        """`get` for asyncio."""
        encoded = self.view.keys.encode(key)
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            generation = self._live()
            place = self._place(generation, encoded)
            snapshot = await self._store.aread(generation, [place])
            if self._is_live(snapshot, generation, [place], deadline):
                if self._reached(generation, snapshot.marks[place[0]], encoded, after):
                    return self._row(snapshot.rows[0])
                self._late(deadline, snapshot.marks[place[0]], after)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    def entry(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Entry[Row]:
        """The row of a key with its version, position and parking."""
        encoded = self.view.keys.encode(key)
        generation, snapshot = self._read([encoded], after, timeout)
        mark = snapshot.marks[self._place(generation, encoded)[0]]
        fields = snapshot.rows[0]
        version = int(fields[b"@version"]) if fields and b"@version" in fields else None
        return Entry(self._row(fields), version, mark.position, mark.parked.get(encoded))

    def many(self, keys: Iterable[K], /, *, after: Position | None = None, timeout: float = 2.0) -> dict[K, Row]:
        """The rows that exist among some keys, in one round trip."""
        wanted = list(keys)
        if not wanted:
            return {}
        _, snapshot = self._read([self.view.keys.encode(key) for key in wanted], after, timeout)
        return {k: self.view.rows.decode(f) for k, f in zip(wanted, snapshot.rows, strict=True) if f is not None}

    def scan(self, *, cursor: str = "", limit: int = 100) -> Page[Row, K]:
        """Up to `limit` rows in bucket and key order, from a cursor on.

        Raises:
            ViewNotBuilt: the cursor's generation is gone; start over.
        """
        generation, bucket, last = self._at(cursor)
        rows: list[tuple[K, Row]] = []
        while bucket < generation.buckets and len(rows) < limit:
            keys = self._store.keys(generation, bucket, last, limit - len(rows))
            snapshot = self._store.read(generation, [(bucket, key) for key in keys])
            for key, fields in zip(keys, snapshot.rows, strict=True):
                if fields is not None:
                    rows.append((self.view.keys.decode(key), self.view.rows.decode(fields)))
            bucket, last = (bucket, keys[-1]) if keys else (bucket + 1, "")
        ended = bucket >= generation.buckets
        return Page(tuple(rows), None if ended else f"{generation.id}:{bucket}:{last}")

    def items(self) -> Iterator[tuple[K, Row]]:
        """Every row, page by page."""
        page = self.scan(limit=1000)
        yield from page.rows
        while page.cursor is not None:
            page = self.scan(cursor=page.cursor, limit=1000)
            yield from page.rows

    def find(self, **equal: Any) -> dict[K, Row]:
        """The rows whose indexed fields have these values.

        Raises:
            ConfigurationError: a field is not among the view's indexes.
        """
        for name in equal:
            if name not in self.view.rows.indexes:
                raise ConfigurationError(
                    f"view {self.view.name} has no index on {name!r}; it has {list(self.view.rows.indexes)}; "
                    f"add it to indexes= and rebuild"
                )
        generation = self._live(fresh=True)
        places: list[tuple[int, str]] = []
        for bucket in range(generation.buckets):
            sets = [set(self._store.found(generation, bucket, n, ordered(v))) for n, v in equal.items()]
            places += [(bucket, key) for key in sorted(set.intersection(*sets) if sets else ())]
        rows = self._store.read(generation, places).rows if places else ()
        found = {}
        for (_, key), fields in zip(places, rows, strict=True):
            if fields is not None:
                row = self.view.rows.decode(fields)
                if all(getattr(row, n) == v for n, v in equal.items()):
                    found[self.view.keys.decode(key)] = row
        return found

    def wait_reached(self, position: Position, *, timeout: float = 10.0) -> None:
        """Waits until every bucket has folded in everything up to a position.

        Raises:
            StaleViewError: the view did not get there in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = self.describe()
            topics = self._live().topics
            if found.position.covers(position.only(topics)):
                return
            if time.monotonic() >= deadline:
                raise StaleViewError(
                    f"view {self.view.name} is at {found.position}, not yet at {position}; "
                    f"is its tail running? leftfold run {self.view.name}"
                )
            self._poll(0.01)

    def describe(self) -> Description:
        """What the live generation says of itself."""
        return describe(self.view, self._live(fresh=True), self._store)

    def _live(self, *, fresh: bool = False) -> Generation:
        if fresh or self._generation is None:
            self._generation = self._store.registry(self.view.name).live_of(self.view.hash, self._name)
        if self._generation is None and self._name:
            raise ViewNotBuilt(
                f"view {self.view.name} has nothing called {self._name!r} for this code (schema {self.view.hash}); "
                f"build it: leftfold rebuild {self.view.name} --as-of PLACE --name {self._name}"
            )
        if self._generation is None:
            raise ViewNotBuilt(
                f"view {self.view.name} has no live generation for this code (schema {self.view.hash}); "
                f"start a tail: leftfold run {self.view.name}, or build it: leftfold rebuild {self.view.name}"
            )
        return self._generation

    def _is_live(
        self, snapshot: Snapshot, generation: Generation, places: list[tuple[int, str]], deadline: float
    ) -> bool:
        if snapshot.live == generation.id and all(bucket in snapshot.marks for bucket, _ in places):
            return True
        self._generation = None
        if time.monotonic() >= deadline:
            raise ViewNotBuilt(
                f"generation {generation.id} of view {self.view.name} is not whole or not live any more; is a tail "
                f"running? leftfold run {self.view.name}"
            )
        return False

    def _read(self, encoded: list[str], after: Position | None, timeout: float) -> tuple[Generation, Snapshot]:
        deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
        while True:
            generation = self._live()
            places = [self._place(generation, key) for key in encoded]
            snapshot = self._store.read(generation, places)
            if self._is_live(snapshot, generation, places, deadline):
                behind = [
                    b
                    for (b, _), key in zip(places, encoded, strict=True)
                    if not self._reached(generation, snapshot.marks[b], key, after)
                ]
                if not behind:
                    return generation, snapshot
                self._late(deadline, snapshot.marks[behind[0]], after)
            self._poll(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    def _place(self, generation: Generation, encoded: str) -> tuple[int, str]:
        if generation.stream_keyed:
            stream = str(self.view.keys.decode(encoded))
            return partition_of(stream.encode(), generation.buckets), encoded
        return bucket_of(generation, encoded, 0), encoded

    def _reached(self, generation: Generation, mark: Mark, encoded: str, after: Position | None) -> bool:
        if after is None:
            return True
        bucket = self._place(generation, encoded)[0] if generation.stream_keyed else None
        return mark.position.covers(after.only(generation.topics, bucket))

    def _late(self, deadline: float, mark: Mark, after: Position | None) -> None:
        if time.monotonic() >= deadline:
            raise StaleViewError(
                f"view {self.view.name} is at {mark.position}, not yet at {after}; "
                f"is its tail running? leftfold run {self.view.name}"
            )

    def _row(self, fields: Mapping[bytes, bytes] | None) -> Row | None:
        return None if fields is None else self.view.rows.decode(fields)

    def _at(self, cursor: str) -> tuple[Generation, int, str]:
        if not cursor:
            return self._live(fresh=True), 0, ""
        id_, _, place = cursor.partition(":")
        bucket, _, last = place.partition(":")
        if not bucket.isdecimal():
            raise ContractError(f"{cursor!r} is no cursor; take it from the page before")
        generation = self._store.registry(self.view.name).generations.get(id_)
        if generation is None or generation.hash != self.view.hash:
            raise ViewNotBuilt(f"generation {id_} of view {self.view.name} is gone; start the scan over")
        return generation, int(bucket), last


_FIRST_PAUSE, _LAST_PAUSE = 0.0005, 0.004


class Views:
    """The views of a connection: `views[household_spend].get("h-7")`."""

    def __init__(self, store: ViewStore, poll: Callable[[float], None] = time.sleep) -> None:
        self._store, self._poll = store, poll
        self._readers: dict[int, Reader[Any, Any]] = {}

    def __getitem__(self, view: View[Row, K], /) -> Reader[Row, K]:
        """The reader of a view."""
        reader = self._readers.get(id(view))
        if reader is None:
            reader = self._readers[id(view)] = Reader(view, self._store, self._poll)
        return reader

    def as_of(self, view: View[Row, K], name: str, /) -> Reader[Row, K]:
        """The reader of what `leftfold rebuild VIEW --as-of PLACE --name NAME` built; it never moves on."""
        return Reader(view, self._store, self._poll, name)
