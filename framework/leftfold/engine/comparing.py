"""Where the rows of a verification go: nowhere, or beside those that are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow
from leftfold.engine.sample import sampled
from leftfold.flush import Generation
from leftfold.ports import ViewStore
from leftfold.rows import Fields

__all__ = ["ComparingSink"]

_CHUNK = 500
_MOST = 1000


@dataclass(frozen=True)
class _Opener:
    """Makes sinks where tasks run."""

    open_store: Callable[[], ViewStore] | None
    share: float

    def __call__(self) -> ComparingSink:
        return ComparingSink(self.open_store() if self.open_store is not None else None, self.share)


class ComparingSink:
    """A BulkSink that writes nothing; with a store it remembers which rows are not the same there.

    Args:
        share: of the keys that are folded at all.
    """

    def __init__(self, store: ViewStore | None, share: float = 1.0) -> None:
        self._store, self._share = store, share
        self._wrong: list[str] = []

    @staticmethod
    def opener(open_store: Callable[[], ViewStore] | None, share: float = 1.0) -> _Opener:
        """A factory that can be shipped to tasks if `open_store` can."""
        return _Opener(open_store, share)

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Takes the rows of one bucket, each key once, and returns how many."""
        self._wrong, count, folded = [], 0, set[str]()
        for chunk in _chunks(rows):
            count += len(chunk)
            if self._store is not None:
                folded.update(row.key for row in chunk)
                self._compare(self._store, generation, bucket, columns, chunk)
        if self._store is not None:
            stored = (key for key in _keys(self._store, generation, bucket) if sampled(key, self._share))
            self._wrong += (key for key in stored if key not in folded)
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """The result with the keys of rows that differ, those not parked."""
        return replace(result, wrong=tuple(key for key in self._wrong if key not in result.parked)[:_MOST])

    def close(self) -> None:
        """Lets go of the store."""
        if self._store is not None:
            self._store.close()

    def _compare(
        self, store: ViewStore, generation: Generation, bucket: int, columns: Fields, chunk: list[BulkRow]
    ) -> None:
        stored = store.read(generation, [(bucket, row.key) for row in chunk]).rows
        for row, fields in zip(chunk, stored, strict=True):
            folded = dict(zip(columns, row.fields, strict=True))
            if row.version is not None:
                folded[b"@version"] = b"%d" % row.version
            if fields != folded:
                self._wrong.append(row.key)


def _chunks(rows: Iterable[BulkRow]) -> Iterator[list[BulkRow]]:
    rest = iter(rows)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _keys(store: ViewStore, generation: Generation, bucket: int) -> Iterator[str]:
    last = ""
    while keys := store.keys(generation, bucket, last, _CHUNK):
        yield from keys
        last = keys[-1]
