"""Every read of a view for asyncio: the same names with an `a` before them, the same arguments and answers."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.description import Description
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.reading.arguments import awaited
from leftfold.reading.bounds import Bounds
from leftfold.reading.change import Change
from leftfold.reading.entry import Entry
from leftfold.reading.live import Live
from leftfold.reading.lookup import Lookup
from leftfold.reading.pages import Page, Pages
from leftfold.reading.search import Search
from leftfold.reading.steps import Steps, arun
from leftfold.reading.watching import Watch
from leftfold.view import View

__all__ = ["AsyncReads"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


class AsyncReads(Generic[Row, K]):
    """The half of a Reader that is awaited; what the reads mean is said there."""

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
        watch = Watch(self._live, keys, after)
        try:
            while True:
                deadline = None if timeout is None else time.monotonic() + timeout
                changes = await arun(self._store, watch.next_changes(deadline))
                if not changes:
                    return
                for change in changes:
                    yield change
        finally:
            watch.close()

    async def await_reached(self, position: Position, *, timeout: float = 10.0) -> None:
        """`wait_reached` for asyncio."""
        await arun(self._store, self._lookup.reached(position, timeout))

    async def adescribe(self) -> Description:
        """`describe` for asyncio."""
        return await arun(self._store, self._lookup.describe())

    def _find(self, asked: Mapping[str, Any]) -> Steps[dict[K, Row]]:
        equal, after, timeout = awaited(self.view, asked)
        return self._lookup.behind(after, timeout, lambda: self._search.find(equal))

    def _count(self, asked: Mapping[str, Any]) -> Steps[int]:
        equal, after, timeout = awaited(self.view, asked)
        return self._lookup.behind(after, timeout, lambda: self._search.count(equal))
