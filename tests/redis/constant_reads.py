"""A reader that reads rows again and again, and tells what no reader should ever see."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from leftfold.client import Views
from leftfold.client.results import Entry
from leftfold.model.position import Position, Recorded
from leftfold.model.view import View
from leftfold.redis import RedisSettings, RedisViewStore
from tests.waiting import wait_until

__all__ = ["ConstantReads", "past_rows", "reading"]


class ConstantReads:
    """What one reader has seen; `troubles` is what it should not have, each said once.

    Args:
        keys: what it reads, over and over.
        past: of a stream-keyed view every row that there ever was, by key and version.
        lasting: whether a row that was there once is there for ever.
    """

    def __init__(
        self, view: View[Any, Any], keys: Sequence[str], past: Mapping[tuple[str, int], Any], *, lasting: bool
    ) -> None:
        self._view, self._keys, self._past, self._lasting = view, keys, past, lasting
        self._positions: dict[str, Position] = {}
        self._there: set[str] = set()
        self._passes, self._failed = 0, False
        self.troubles: dict[str, None] = {}
        self.stop = threading.Event()

    def run(self, settings: RedisSettings) -> None:
        """Reads until told to stop."""
        store = RedisViewStore(settings)
        reader = Views(store)[self._view]
        try:
            while not self.stop.is_set():
                for key in self._keys:
                    self._look(key, reader.entry(key))
                self._passes += 1
        except BaseException as error:
            self._failed, self.troubles[f"the reader failed: {error!r}"] = True, None
            raise
        finally:
            store.close()

    def wait_for_passes(self, count: int = 2) -> None:
        """Waits until every row has been read again; the first pass may have begun before."""
        wanted = self._passes + count
        wait_until(lambda: self._passes >= wanted or self._failed, "the reader to read every row again")

    def kinds(self) -> set[str]:
        """What went wrong, in one word each."""
        return {trouble.rpartition(" ")[2] for trouble in self.troubles}

    def _look(self, key: str, entry: Entry[Any]) -> None:
        if not entry.position.covers(self._positions.get(key, Position())):
            self.troubles[f"{key} is older"] = None
        if self._lasting and entry.row is None and key in self._there:
            self.troubles[f"{key} is missing"] = None
        if entry.version is not None and entry.row != self._past[key, entry.version]:
            self.troubles[f"{key} is mixed"] = None
        self._positions[key] = entry.position
        if entry.row is not None:
            self._there.add(key)


@contextmanager
def reading(
    settings: RedisSettings,
    view: View[Any, Any],
    keys: Sequence[str],
    past: Mapping[tuple[str, int], Any],
    *,
    lasting: bool,
) -> Iterator[ConstantReads]:
    """A reader at work in a thread while the block runs."""
    reads = ConstantReads(view, keys, past, lasting=lasting)
    thread = threading.Thread(target=reads.run, args=(settings,), name="reader")
    thread.start()
    try:
        yield reads
    finally:
        reads.stop.set()
        thread.join()


def past_rows(view: View[Any, Any], recorded: Sequence[Recorded[Any]]) -> dict[tuple[str, int], Any]:
    """Every row that a stream-keyed view has ever had, by key and version."""
    rows: dict[str, Any] = {}
    found: dict[tuple[str, int], Any] = {}
    for one in recorded:
        rows[one.key] = found[one.key, one.version] = view.evolve_row(rows.get(one.key), one.event)
    return found
