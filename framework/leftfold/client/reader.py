"""The reads of a view for threads, and the views of a connection or of a world in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic
from typing import TypeVar as PlainVar

from typing_extensions import TypeVar

from leftfold.client.async_reader import AsyncReads, Page
from leftfold.client.changes import Watch
from leftfold.client.lookup import checked_view
from leftfold.client.results import Change, Description, Entry
from leftfold.client.search import Bounds
from leftfold.client.steps import Steps, run
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.protocols import ViewStore

__all__ = ["Reader", "Views"]


A = PlainVar("A")
Row = TypeVar("Row")
K = TypeVar("K", default=str)


class Reader(AsyncReads[Row, K], Generic[Row, K]):
    """The reader of one view; threads and tasks may share it.

    Every read follows the live generation of this code's schema hash, or a pinned one by its name, and raises
    ViewNotBuilt when there is none.
    """

    def __init__(
        self, view: View[Row, K], store: ViewStore, poll: Callable[[float], None] | None = None, name: str = ""
    ) -> None:
        super().__init__(view, store, name)
        self._poll = poll

    def get(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Row | None:
        """The row of a key, None when there is none; a parked row is as it was before it parked (see `entry`).

        Args:
            after: wait until this position is folded (a receipt's position). timeout: seconds to wait.

        Raises:
            StaleViewError: the view did not get there in time.
        """
        return self._run(self._lookup.row(key, after, timeout))

    def entry(self, key: K, /, *, after: Position | None = None, timeout: float = 2.0) -> Entry[Row]:
        """The row of a key with its version, position and parking."""
        return self._run(self._lookup.entry(key, after, timeout))

    def many(self, keys: Iterable[K], /, *, after: Position | None = None, timeout: float = 2.0) -> dict[K, Row]:
        """The rows that exist among some keys, in one round trip."""
        return self._run(self._lookup.many(keys, after, timeout))

    def scan(self, *, cursor: str = "", limit: int = 100) -> Page[Row, K]:
        """Up to `limit` rows in bucket and key order, after a cursor.

        Raises:
            ViewNotBuilt: the cursor's generation no longer exists; start over.
        """
        return self._run(self._pages.page(cursor, limit))

    def items(self) -> Iterator[tuple[K, Row]]:
        """Every row, page by page."""
        page = self.scan(limit=1000)
        yield from page.rows
        while page.cursor is not None:
            page = self.scan(cursor=page.cursor, limit=1000)
            yield from page.rows

    def find(self, /, **equal: Any) -> dict[K, Row]:
        """The rows whose indexed fields have these values.

        `after=` and `timeout=` wait as those of `get` do, for the whole view, and `limit=` is the maximum number of
        rows, the first in the order of their keys. A field of such a name that has an index is meant instead; for
        `timeout=` unless `after` is a Position.

        Raises:
            ConfigurationError: a field has no index, or a value is not of its type.
            StaleViewError: the view did not get there in time.
        """
        return self._run(self._find(equal))

    def between(
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
        """The rows whose indexed field lies in a range, in its order; rows with None there are left out.

        Args:
            at_least, above: the lower end, with or without the value itself; at_most, below: the upper end. An end
                that is not given is open.
            limit: the maximum number of rows, from the lower end.
            after, timeout: as in `get`, for the whole view.

        Raises:
            ConfigurationError: the field has no index, or an end is not of its type.
            StaleViewError: the view did not get there in time.
        """
        bounds = Bounds(at_least, above, at_most, below)
        return self._run(self._lookup.behind(after, timeout, lambda: self._search.between(field, bounds, limit)))

    def top(
        self, field: str, n: int, /, *, smallest: bool = False, after: Position | None = None, timeout: float = 2.0
    ) -> dict[K, Row]:
        """The `n` rows with the largest values in an indexed field, best first; those with None are left out.

        Raises:
            ConfigurationError: the field has no index.
        """
        return self._run(self._lookup.behind(after, timeout, lambda: self._search.top(field, n, smallest=smallest)))

    def count(self, /, **equal: Any) -> int:
        """The number of rows, or of rows with these values; it reads no row and waits as `find` does.

        Raises:
            ConfigurationError: a field has no index, or a value is not of its type.
        """
        return self._run(self._count(equal))

    def count_between(
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
        """The number of rows that `between` would return without a limit; it reads no row."""
        bounds = Bounds(at_least, above, at_most, below)
        return self._run(self._lookup.behind(after, timeout, lambda: self._search.count_between(field, bounds)))

    def watch(
        self, *, after: Position | None = None, keys: Iterable[K] | None = None, timeout: float | None = None
    ) -> Generator[Change[Row, K], None, None]:
        """The changes of rows, without end, each with the newest row; several changes of a row may come as one.

        Args:
            after: a change's or a description's position to continue from, without missing a change; None = from now.
            keys: only these rows. timeout: end after so many seconds without a change.

        Raises:
            ChangesNotKept: the changes since `after` are not kept; read all rows and watch from there.
        """
        watch = Watch(self._live, keys, after)
        self._run(watch.begin())
        return self._watched(watch, timeout)

    def wait_reached(self, position: Position, *, timeout: float = 10.0) -> None:
        """Waits until every bucket has folded everything up to a position.

        Raises:
            StaleViewError: the view did not get there in time.
        """
        self._run(self._lookup.reached(position, timeout))

    def describe(self) -> Description:
        """The description of the live generation."""
        return self._run(self._lookup.describe())

    def _watched(self, watch: Watch[Row, K], timeout: float | None) -> Generator[Change[Row, K], None, None]:
        try:
            while changes := self._run(watch.next_changes(None if timeout is None else time.monotonic() + timeout)):
                yield from changes
        finally:
            watch.close()

    def _run(self, steps: Steps[A]) -> A:
        return run(self._store, steps, self._poll)


class Views:
    """The readers of views: `views[household_spend].get("h-7")`.

    Args:
        poll: called by a blocking reader instead of waiting for a notification, with the seconds it may take.
    """

    def __init__(self, store: ViewStore, poll: Callable[[float], None] | None = None) -> None:
        self._store, self._poll = store, poll
        self._readers: dict[int, Reader[Any, Any]] = {}

    def __getitem__(self, view: View[Row, K], /) -> Reader[Row, K]:
        """The reader of a view."""
        reader = self._readers.get(id(view))
        if reader is None:
            reader = self._readers[id(view)] = Reader(checked_view(view), self._store, self._poll)
        return reader

    def as_of(self, view: View[Row, K], name: str, /) -> Reader[Row, K]:
        """The reader of a generation that `leftfold rebuild VIEW --as-of PLACE --name NAME` built; it is fixed."""
        return Reader(checked_view(view), self._store, self._poll, name)
