"""The reads of a view for asyncio, and scans of a whole view page by page."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.client.changes import Watch
from leftfold.client.lookup import Live, Lookup, awaited, check_number
from leftfold.client.results import Change, Description, Entry
from leftfold.client.search import Bounds, Search
from leftfold.client.steps import Steps, arun, ask
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.state_codec import number_in
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Listed, Registered, Rows

__all__ = ["AsyncReads", "AsyncWatch", "Page"]


Row = TypeVar("Row")
K = TypeVar("K", default=str)
_READ = (Phase.LIVE, Phase.KEPT, Phase.PINNED)


@dataclass(frozen=True)
class Page(Generic[Row, K]):
    """A page of a scan in bucket and key order; `cursor` continues it, None at the end."""

    rows: tuple[tuple[K, Row], ...]
    cursor: str | None


class CursorError(ContractError):
    """What was given as a cursor is none."""


class Pages(Generic[Row, K]):
    """Scans of the live generation; a cursor holds the generation it began in, in which it continues while kept."""

    def __init__(self, live: Live[Row, K]) -> None:
        self._live, self._view = live, live.view

    def page(self, cursor: str, limit: int) -> Steps[Page[Row, K]]:
        """Up to `limit` rows after a cursor."""
        check_number(limit, "limit")
        generation, bucket, last = yield from self._at(cursor)
        rows: list[tuple[K, Row]] = []
        while bucket < generation.buckets and len(rows) < limit:
            keys = yield from ask(Listed(generation, bucket, last, limit - len(rows)))
            snapshot = yield from ask(Rows(generation, tuple([(bucket, key) for key in keys]), (bucket,)))
            if bucket not in snapshot.checkpoints:
                raise self._removed_error(generation.id)
            for key, fields in zip(keys, snapshot.rows, strict=True):
                if fields is not None:
                    rows.append((self._view.keys.decode(key), self._view.rows.decode(fields)))
            bucket, last = (bucket, keys[-1]) if keys else (bucket + 1, "")
        ended = bucket >= generation.buckets
        return Page(tuple(rows), None if ended else f"{generation.id}:{bucket}:{last}")

    def _at(self, cursor: str) -> Steps[tuple[Generation, int, str]]:
        if not cursor:
            return (yield from self._live.generation(fresh=True)), 0, ""
        id_, _, place = cursor.partition(":")
        bucket, _, last = place.partition(":")
        registry = yield from ask(Registered(self._view.name))
        generation, number = registry.generations.get(id_), number_in(bucket)
        if number is None or (generation is not None and number >= generation.buckets):
            raise CursorError(f"{cursor[:80]!r} is no cursor; take it from the page before")
        # One that is being built or held was never live, and its rows may be wrong.
        readable = (self._view.hash, self._live.name)
        if generation is None or generation.phase not in _READ or (generation.hash, generation.name) != readable:
            raise self._removed_error(id_[:80])
        return generation, number, last

    def _removed_error(self, id_: str) -> ViewNotBuilt:
        return ViewNotBuilt(f"generation {id_} of view {self._view.name} no longer exists; start the scan over")


class AsyncWatch(Generic[Row, K]):
    """A watch of the changes of a view for asyncio."""

    def __init__(self, watch: Watch[Row, K], store: ViewStore) -> None:
        self._watch, self._store = watch, store

    @property
    def position(self) -> Position:
        """Where the watch stands: every change up to here was returned; empty before it begins."""
        return self._watch.position

    async def begin(self) -> None:
        """Finds its place; it misses no change from then on.

        Raises:
            ChangesNotKept: the changes do not reach back to its position. ViewNotBuilt: nothing is live.
        """
        await arun(self._store, self._watch.begin())

    async def next_changes(self, timeout: float | None) -> list[Change[Row, K]]:
        """The next changes, at least one; none when the timeout passes before.

        Args:
            timeout: in seconds; None = for ever.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return await arun(self._store, self._watch.next_changes(deadline))

    def close(self) -> None:
        """Ends the notifications."""
        self._watch.close()


class AsyncReads(Generic[Row, K]):
    """The asyncio half of a Reader; `Reader` documents what each read means."""

    def __init__(self, view: View[Row, K], store: ViewStore, name: str = "") -> None:
        self.view, self._store = view, store
        self._live = Live(view, name)
        self._lookup, self._pages, self._search = Lookup(self._live), Pages(self._live), Search(self._live)

    async def aget(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Row | None:
        """`get` for asyncio."""
        return await arun(self._store, self._lookup.row(key, after, timeout))

    async def aentry(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Entry[Row]:
        """`entry` for asyncio."""
        return await arun(self._store, self._lookup.entry(key, after, timeout))

    async def amany(self, keys: Iterable[K], /, *, after: Position | None = None, timeout: float = 2.0) -> dict[K, Row]:
        """`many` for asyncio."""
        return await arun(self._store, self._lookup.many(keys, after, timeout))

    async def ascan(self, *, cursor: str = "", limit: int = 100) -> Page[Row, K]:
        """`scan` for asyncio."""
        return await arun(self._store, self._pages.page(cursor, limit))

    async def aitems(self) -> AsyncIterator[tuple[K, Row]]:
        """`items` for asyncio."""
        cursor: str | None = ""
        while cursor is not None:
            page = await self.ascan(cursor=cursor, limit=1000)
            for item in page.rows:
                yield item
            cursor = page.cursor

    async def afind(self, /, **equal: Any) -> dict[K, Row]:
        """`find` for asyncio."""
        return await arun(self._store, self._find(equal))

    async def abetween(
        self,
        field: str,
        /,
        *,
        at_least: Any = None,
        above: Any = None,
        at_most: Any = None,
        below: Any = None,
        limit: int | None = None,
        after: Position | None = None,
        timeout: float = 2.0,
    ) -> dict[K, Row]:
        """`between` for asyncio."""
        bounds = Bounds(at_least, above, at_most, below)
        steps = self._lookup.behind(after, timeout, lambda: self._search.between(field, bounds, limit))
        return await arun(self._store, steps)

    async def atop(
        self, field: str, n: int, /, *, smallest: bool = False, after: Position | None = None, timeout: float = 2.0
    ) -> dict[K, Row]:
        """`top` for asyncio."""
        steps = self._lookup.behind(after, timeout, lambda: self._search.top(field, n, smallest=smallest))
        return await arun(self._store, steps)

    async def acount(self, /, **equal: Any) -> int:
        """`count` for asyncio."""
        return await arun(self._store, self._count(equal))

    async def acount_between(
        self,
        field: str,
        /,
        *,
        at_least: Any = None,
        above: Any = None,
        at_most: Any = None,
        below: Any = None,
        after: Position | None = None,
        timeout: float = 2.0,
    ) -> int:
        """`count_between` for asyncio."""
        bounds = Bounds(at_least, above, at_most, below)
        steps = self._lookup.behind(after, timeout, lambda: self._search.count_between(field, bounds))
        return await arun(self._store, steps)

    async def awatch(
        self, *, after: Position | None = None, keys: Iterable[K] | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Change[Row, K], None]:
        """`watch` for asyncio; without `after` it begins when the first change is awaited."""
        watch = self.open_watch(after=after, keys=keys)
        try:
            while changes := await watch.next_changes(timeout):
                for change in changes:
                    yield change
        finally:
            watch.close()

    def open_watch(self, *, after: Position | None = None, keys: Iterable[K] | None = None) -> AsyncWatch[Row, K]:
        """A watch whose changes are asked for round by round; the caller closes it."""
        return AsyncWatch(Watch(self._live, keys, after), self._store)

    async def await_reached(self, position: Position, *, timeout: float = 10.0) -> None:
        """`wait_reached` for asyncio."""
        await arun(self._store, self._lookup.reached(position, timeout))

    async def adescribe(self) -> Description:
        """`describe` for asyncio."""
        return await arun(self._store, self._lookup.describe())

    def _find(self, asked: Mapping[str, Any]) -> Steps[dict[K, Row]]:
        equal, after, timeout = awaited(self.view, asked)
        limit = equal.pop("limit", None) if "limit" not in self.view.rows.indexes else None
        return self._lookup.behind(after, timeout, lambda: self._search.find(equal, limit))

    def _count(self, asked: Mapping[str, Any]) -> Steps[int]:
        equal, after, timeout = awaited(self.view, asked)
        return self._lookup.behind(after, timeout, lambda: self._search.count(equal))
