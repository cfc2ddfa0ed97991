"""Compares recomputed rows with stored rows while projectors may be writing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from leftfold.engine.rebuild.sorted_fold import sampled
from leftfold.engine.verify.history import RowsFold
from leftfold.engine.verify.row_differences import Fields, RowDifference, keys_of, text_fields
from leftfold.engine.views.folded_rows import RowAddress, place_of
from leftfold.engine.views.parking import StepwiseFold
from leftfold.errors import ContractError, InfrastructureError, ViewNotBuilt
from leftfold.model.row_codec import Fields as FieldTypes
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkRow, OpenBulkLog, Suspect
from leftfold.ports.flush import Checkpoint, Generation, stored_fields
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Entries, Entry, InspectedRow, Inspection

__all__ = ["MOST_SUSPECTS", "ComparingSink", "Fields", "RowCheck", "fields_of", "row_and_checkpoint"]


MOST_SUSPECTS = 10_000
"""How many suspects of one bucket are recorded; the rest is left to another run."""
_CHUNK = 500
_PAGE = 2000


class ComparingSink:
    """A BulkSink that writes nothing; with a store, which it opens, it records the rows that seem to differ there.

    Rows are read in chunks, and of the others only keys and index entries are kept, of one bucket at a time.

    Args:
        share: of the keys that are folded at all.
        sets: compares the entries of indexes, and the keys missing in the key list, too.
        most: how many suspects of a bucket are recorded.
    """

    def __init__(
        self, open_store: Callable[[], ViewStore] | None, share: float = 1.0, *, sets: bool, most: int = MOST_SUSPECTS
    ) -> None:
        self._store = open_store() if open_store is not None else None
        self._share, self._sets, self._most = share, sets, most
        self._wrong: dict[Suspect, None] = {}

    def write(
        self,
        generation: Generation,
        bucket: int,
        columns: FieldTypes,
        indexes: tuple[str, ...],
        rows: Iterable[BulkRow],
    ) -> int:
        """Takes the rows of one bucket, each key once, and returns how many."""
        self._wrong, count, folded = {}, 0, dict[str, tuple[str, ...]]()
        for chunk in _chunks(rows):
            count += len(chunk)
            if self._store is not None:
                folded.update((row.key, row.entries) for row in chunk)
                self._compare(self._store, generation, bucket, columns, chunk)
        if self._store is not None:
            self._compare_keys(chain.from_iterable(keys_of(self._store, generation, [bucket])), folded)
            for place, index in enumerate(indexes if self._sets else ()):
                expected = {key: entries[place] for key, entries in folded.items()}
                self._compare_entries(index, _entries(self._store, generation, bucket, index), expected)
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """The result with the suspects of its bucket, except parked rows."""
        wrong = (one for one in self._wrong if one.key not in result.parked)
        return replace(result, wrong=tuple(islice(wrong, self._most)))

    def close(self) -> None:
        """Closes the store."""
        if self._store is not None:
            self._store.close()

    def _compare(
        self, store: ViewStore, generation: Generation, bucket: int, columns: FieldTypes, chunk: list[BulkRow]
    ) -> None:
        stored = store.read(generation, [(bucket, row.key) for row in chunk]).rows
        for row, fields in zip(chunk, stored, strict=True):
            if fields != stored_fields(columns, row.fields, row.version):
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
        # Twice as many, since suspects that turn out to be parked are dropped at the end.
        if len(self._wrong) < 2 * self._most:
            self._wrong[one] = None


def _chunks(rows: Iterable[BulkRow]) -> Iterator[list[BulkRow]]:
    rest = iter(rows)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _entries(store: ViewStore, generation: Generation, bucket: int, index: str) -> Iterator[tuple[str, str]]:
    """Every entry of an index; each page starts with the last entry of the one before, if that still exists."""
    last, page = ("", ""), store.ask(Entries(generation, bucket, index, ("", ""), _PAGE))
    while page:
        yield from page
        last = page[-1]
        page = [e for e in store.ask(Entries(generation, bucket, index, last, _PAGE)) if e != last]


_PATIENCE = 30.0
_LISTED = "#"
_TOGETHER = 5_000
"""How many rows are held in memory, and folded in one pass over the log."""


class RowCheck:
    """Compares suspect rows with the log, each at the position of its bucket when it was read.

    Args:
        sets: compares the key list and the indexes too, for rows that are not parked. Differences there are reported as
            if they were fields of the row: `#` is its place in the key list, `#field` what the index of that field has.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        store: ViewStore,
        open_log: OpenBulkLog,
        *,
        sets: bool = False,
    ) -> None:
        self._view, self._generation, self._store, self._open_log = view, generation, store, open_log
        self._indexes = view.rows.indexes if sets else ()
        self._sets = sets

    def differences(
        self,
        suspects: Mapping[RowAddress, Collection[Entry]],
        most: int,
        tell: Callable[[int], None] = lambda count: None,
    ) -> tuple[RowDifference, ...]:
        """The first rows that differ from the log; `one` is the stored row, `other` the folded one.

        Args:
            suspects: rows, each with index entries that it should not have.
            tell: called with the number of rows compared.

        Raises:
            ViewNotBuilt: the generation no longer exists.
            InfrastructureError: a bucket never stood still.
        """
        found: list[RowDifference] = []
        rest = iter(suspects.items())
        while len(found) < most and (some := dict(islice(rest, _TOGETHER))):
            found += self._among(some)
            tell(len(some))
        return tuple(found[:most])

    def _among(self, suspects: Mapping[RowAddress, Collection[Entry]]) -> list[RowDifference]:
        seen = {place: self._inspected(place, entries) for place, entries in suspects.items()}
        wanted = {place[1]: checkpoint.position for place, (checkpoint, _) in seen.items() if self._belongs(place)}
        with closing(self._open_log()) as log:
            folded = RowsFold(self._view, self._generation, log, wanted).rows
        found = (
            self._difference(place[1], row, folded[place[1]] if self._belongs(place) else None)
            for place, (checkpoint, row) in seen.items()
            if not (self._sets and place[1] in checkpoint.parked)
        )
        return [difference for difference in found if difference.fields]

    def _belongs(self, place: RowAddress) -> bool:
        """Whether a row of this key may be in the bucket at all."""
        return place_of(self._generation, place[1]) == place

    def _inspected(self, place: RowAddress, strays: Collection[Entry]) -> tuple[Checkpoint, InspectedRow]:
        def asked(stored: Mapping[bytes, bytes] | None) -> tuple[Entry, ...]:
            return tuple(dict.fromkeys([*strays, *self._entries_of(stored)]))

        return _inspected(self._generation, place, self._store, asked)

    def _entries_of(self, stored: Mapping[bytes, bytes] | None) -> Sequence[Entry]:
        """The index entries that a stored row should have."""
        if stored is None or not self._indexes:
            return ()
        codec = self._view.rows
        try:
            return list(zip(self._indexes, codec.index_entries(codec.decode(stored)), strict=True))
        except ContractError:
            return ()  # a row that cannot be read differs anyhow

    def _difference(self, key: str, row: InspectedRow, folded: StepwiseFold | None) -> RowDifference:
        one = text_fields(row.fields)
        other = None if folded is None else fields_of(self._view, folded.good, folded.version)
        if not self._sets:
            return RowDifference(key, one, other)
        stored, mine = self._stored_sets(row), self._folded_sets(folded)
        if one != other:
            # The entries that the row should have were not asked for then: only stray ones count.
            for name in [name for name in mine if name != _LISTED and stored.get(name, mine[name]) == mine[name]]:
                stored.pop(name, None)
                del mine[name]
        differing = {name for name in stored.keys() | mine.keys() if stored.get(name) != mine.get(name)}
        return RowDifference(key, _with(one, stored, differing), _with(other, mine, differing))

    def _stored_sets(self, row: InspectedRow) -> dict[str, str]:
        """The sets that list a row in the store, by name."""
        found = {_LISTED: "listed"} if row.listed else {}
        for index, value in sorted(row.entries):
            name = _LISTED + index
            found[name] = f"{found[name]} {value}" if name in found else value
        return found

    def _folded_sets(self, folded: StepwiseFold | None) -> dict[str, str]:
        """The sets that should list a folded row, by name."""
        if folded is None or folded.good is None:
            return {}
        values = self._view.rows.index_entries(folded.good) if self._indexes else ()
        return {_LISTED: "listed", **{_LISTED + i: value for i, value in zip(self._indexes, values, strict=True)}}


def _with(fields: Fields | None, sets: Mapping[str, str], differing: Collection[str]) -> Fields | None:
    return {**(fields or {}), **{name: text for name, text in sets.items() if name in differing}} or None


def row_and_checkpoint(generation: Generation, key: str, store: ViewStore) -> tuple[Fields | None, Checkpoint]:
    """A stored row and the checkpoint of its bucket, both as of one moment."""
    checkpoint, row = _inspected(generation, place_of(generation, key), store, lambda stored: ())
    return text_fields(row.fields), checkpoint


def _inspected(
    generation: Generation,
    place: RowAddress,
    store: ViewStore,
    asked: Callable[[Mapping[bytes, bytes] | None], tuple[Entry, ...]],
) -> tuple[Checkpoint, InspectedRow]:
    """What is stored of a row, and its bucket's checkpoint, which did not move during the read.

    Args:
        asked: gives the index entries to look for from the row's fields.
    """
    entries, deadline = asked(None), time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        row = store.ask(Inspection(generation, *place, entries))
        if row.checkpoint is None:
            raise ViewNotBuilt(f"generation {generation.id} of view {generation.view} is not whole any more")
        wanted = asked(row.fields)
        if row.still and set(wanted) <= set(entries):
            return row.checkpoint, row
        entries = wanted
    raise InfrastructureError(
        f"bucket {place[0]} of {generation.view} {generation.id} never stood still in {_PATIENCE:g} s"
    )


def fields_of(view: View[Any, Any], row: Any, version: int | None) -> Fields | None:
    """A row as it would be stored; None = no row."""
    return None if row is None else text_fields(stored_fields(view.rows.columns, view.rows.encode(row), version))
