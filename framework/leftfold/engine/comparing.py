"""Where the rows of a verification go: nowhere, or beside those that are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from leftfold.engine.bulk_result import BucketResult, Suspect
from leftfold.engine.bulk_store import BulkRow
from leftfold.engine.sample import sampled
from leftfold.flush import Generation
from leftfold.ports import ViewStore
from leftfold.questions import Entries
from leftfold.rows import Fields as FieldTypes

__all__ = ["MOST_SUSPECTS", "ComparingSink"]

MOST_SUSPECTS = 10_000
"""How much of one bucket may seem to differ before the rest is left for another time."""
_CHUNK = 500
_PAGE = 2000


@dataclass(frozen=True)
class _Opener:
    """Makes sinks where tasks run."""

    open_store: Callable[[], ViewStore] | None
    share: float
    sets: bool
    most: int

    def __call__(self) -> ComparingSink:
        store = self.open_store() if self.open_store is not None else None
        return ComparingSink(store, self.share, sets=self.sets, most=self.most)


class ComparingSink:
    """A BulkSink that writes nothing; with a store it remembers what seems to be otherwise there.

    Rows are read in chunks, and of the others only keys and index entries are kept, of one bucket at a time.

    Args:
        share: of the keys that are folded at all.
        sets: compares the entries of indexes and who is missing in the key list, too.
        most: how much of a bucket is remembered.
    """

    def __init__(
        self, store: ViewStore | None, share: float = 1.0, *, sets: bool = False, most: int = MOST_SUSPECTS
    ) -> None:
        self._store, self._share, self._sets, self._most = store, share, sets, most
        self._wrong: dict[Suspect, None] = {}

    @staticmethod
    def opener(
        open_store: Callable[[], ViewStore] | None,
        share: float = 1.0,
        *,
        sets: bool = False,
        most: int = MOST_SUSPECTS,
    ) -> _Opener:
        """A factory that can be shipped to tasks if `open_store` can."""
        return _Opener(open_store, share, sets, most)

    def write(
        self, generation: Generation, bucket: int, columns: FieldTypes, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Takes the rows of one bucket, each key once, and returns how many."""
        self._wrong, count, folded = {}, 0, dict[str, tuple[str, ...]]()
        for chunk in _chunks(rows):
            count += len(chunk)
            if self._store is not None:
                folded.update((row.key, row.entries) for row in chunk)
                self._compare(self._store, generation, bucket, columns, chunk)
        if self._store is not None:
            self._compare_keys(_keys(self._store, generation, bucket), folded)
            for place, index in enumerate(indexes if self._sets else ()):
                expected = {key: entries[place] for key, entries in folded.items()}
                self._compare_entries(index, _entries(self._store, generation, bucket, index), expected)
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """The result with what seems to be otherwise, but for rows that are parked."""
        wrong = (one for one in self._wrong if one.key not in result.parked)
        return replace(result, wrong=tuple(islice(wrong, self._most)))

    def close(self) -> None:
        """Lets go of the store."""
        if self._store is not None:
            self._store.close()

    def _compare(
        self, store: ViewStore, generation: Generation, bucket: int, columns: FieldTypes, chunk: list[BulkRow]
    ) -> None:
        stored = store.read(generation, [(bucket, row.key) for row in chunk]).rows
        for row, fields in zip(chunk, stored, strict=True):
            folded = dict(zip(columns, row.fields, strict=True))
            if row.version is not None:
                folded[b"@version"] = b"%d" % row.version
            if fields != folded:
                self._suspect(Suspect(row.key))

    def _compare_keys(self, listed: Iterable[str], folded: Mapping[str, object]) -> None:
        unlisted = set(folded) if self._sets else set[str]()
        for key in listed:
            unlisted.discard(key)
            if key not in folded and sampled(key, self._share):
                self._suspect(Suspect(key))
        for key in unlisted:
            self._suspect(Suspect(key))

    def _compare_entries(self, index: str, stored: Iterable[tuple[str, str]], expected: dict[str, str]) -> None:
        missing = set(expected)
        for value, key in stored:
            if expected.get(key) == value:
                missing.discard(key)
            else:
                self._suspect(Suspect(key, index, value))
        for key in missing:
            self._suspect(Suspect(key))

    def _suspect(self, one: Suspect) -> None:
        # Twice as many, since those that turn out to be parked are dropped in the end.
        if len(self._wrong) < 2 * self._most:
            self._wrong[one] = None


def _chunks(rows: Iterable[BulkRow]) -> Iterator[list[BulkRow]]:
    rest = iter(rows)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _keys(store: ViewStore, generation: Generation, bucket: int) -> Iterator[str]:
    last = ""
    while keys := store.keys(generation, bucket, last, _CHUNK):
        yield from keys
        last = keys[-1]


def _entries(store: ViewStore, generation: Generation, bucket: int, index: str) -> Iterator[tuple[str, str]]:
    """Every entry of an index; each page begins with the last entry of the one before, if that is still there."""
    last, page = ("", ""), store.ask(Entries(generation, bucket, index, ("", ""), _PAGE))
    while page:
        yield from page
        last = page[-1]
        page = [e for e in store.ask(Entries(generation, bucket, index, last, _PAGE)) if e != last]
