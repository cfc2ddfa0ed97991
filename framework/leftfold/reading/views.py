"""The views of a connection or of a memory world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import TypeVar

from leftfold.ports import ViewStore
from leftfold.reading.arguments import checked_view
from leftfold.reading.reader import Reader
from leftfold.view import View

__all__ = ["Views"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


class Views:
    """Readers by view: `views[household_spend].get("h-7")`.

    Args:
        poll: what a blocking reader does instead of waiting for the store's bell; given the seconds it may take.
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
        """The reader of what `leftfold rebuild VIEW --as-of PLACE --name NAME` built; it never moves on."""
        return Reader(checked_view(view), self._store, self._poll, name)
