"""Rows as they are folded in memory: their address, step-by-step folds, and rows that cannot be stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

from leftfold.engine.views.decoding import Decoded
from leftfold.errors import ContractError
from leftfold.model.keys import partition_of
from leftfold.model.rows import Fields
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Parked, RowChange
from leftfold.safety import shown

__all__ = [
    "NO_KEY", "FoldedBucket", "FoldedRow", "RowAddress", "RowEncodingError", "StepwiseFold", "bucket_of",
    "check_storable", "parked_at", "place_of", "stored_row", "stream_row",
]  # fmt: skip


class RowEncodingError(Exception):
    """Some rows cannot be encoded for the store.

    Folding them again step by step finds the events that made them so.

    Args:
        rows: their addresses in the fold.
    """

    def __init__(self, rows: Collection[Any], why: Exception) -> None:
        super().__init__(repr(why))
        self.rows = frozenset(rows)


def check_storable(view: View[Any, Any], row: Any) -> None:
    """Encodes the row; raises what the encoding raises."""
    view.rows.encode(row)
    view.rows.index_entries(row)


_change: Any = tuple.__new__


@dataclass(slots=True)
class FoldedBucket:
    """A bucket in memory: `checksum` and `rows` as sent last, `parked` and `time` with every event folded since.

    `is_whole` says whether all of its rows are in memory, so that none needs reading: it was empty, and no row has been
    evicted since. Another writer that has added rows meanwhile has changed the checkpoint's token.
    """

    checksum: int
    rows: int
    parked: dict[str, Parked]
    time: str
    is_whole: bool
    stuck: list[FoldedRow] = field(default_factory=list)
    """The rows that were parked since the last flush, whose digests are still in the checksum."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> FoldedBucket:
        """The bucket as its checkpoint describes it."""
        return cls(checkpoint.checksum, checkpoint.rows, dict(checkpoint.parked), checkpoint.time, not checkpoint.rows)

    def settle(self) -> None:
        """Takes parked rows out of the checksum."""
        for row in self.stuck:
            self.checksum -= row.digest
            row.digest = 0
        self.stuck.clear()


@dataclass(slots=True)
class FoldedRow:
    """A row in memory: `row` is None where there is none, and a ContractError where it is unreadable.

    `digest`, `indexed` and `there` say what the store was sent last, so that the next flush can take it back.
    """

    bucket: FoldedBucket
    key: str
    row: Any
    digest: int = 0
    indexed: tuple[str, ...] | None = None
    there: bool = False
    version: int | None = None

    def change(self, view: View[Any, Any], encoded: tuple[Fields, tuple[str, ...]] | None = None) -> RowChange:
        """The change of the row for the next flush, which counts as sent from now on.

        Raises the error of the encoding when the row cannot be encoded.

        Args:
            encoded: its fields and index entries, if it is encoded already.
        """
        row, before, bucket, rows = self.row, self.indexed, self.bucket, view.rows
        if row is None:
            fields, now, digest = None, None, 0
        else:
            fields, now = encoded or (rows.encode(row), rows.index_entries(row) if rows.indexes else ())
            digest = rows.digest(self.key, fields)
        bucket.checksum += digest - self.digest
        if self.there is (row is None):
            self.there = row is not None
            bucket.rows += 1 if self.there else -1
        self.digest, self.indexed = digest, now
        changed: RowChange = _change(RowChange, (self.key, fields, self.version, before, now))
        return changed


def stored_row(view: View[Any, Any], bucket: FoldedBucket, key: str, fields: Any) -> FoldedRow:
    """The row as it was read; `fields` is None where there is none."""
    if fields is None:
        return FoldedRow(bucket, key, None)
    rows = view.rows
    digest = rows.digest(key, tuple([fields.get(column, b"") for column in rows.columns]))
    try:
        row = rows.decode(fields)
        return FoldedRow(bucket, key, row, digest, rows.index_entries(row), there=True)
    except ContractError as error:
        return FoldedRow(bucket, key, error, digest, there=True)


RowAddress: TypeAlias = tuple[int, str]
"""A bucket and an encoded row key in it."""
NO_KEY = "\0"
"""The key of a record that has none, so that it has a row to park."""
_HASHED = 1 << 16
"""How many keys' buckets are cached; murmur2 in Python costs as much as the rest of folding an event."""


def bucket_of(generation: Generation, key: str, partition: int) -> int:
    """The bucket of an encoded row key: its source partition when stream-keyed, else murmur2 of the key."""
    return partition if generation.stream_keyed else _hashed(key, generation.buckets)


def place_of(generation: Generation, key: str) -> RowAddress:
    """The address of a row: its bucket is the partition of its stream when stream-keyed, else murmur2 of the key."""
    return _hashed(unquote(key) if generation.stream_keyed else key, generation.buckets), key


@lru_cache(maxsize=_HASHED)
def _hashed(key: str, buckets: int) -> int:
    return partition_of(key.encode(), buckets)


def stream_row(view: View[Any, Any], record: Decoded) -> tuple[str, str, Any]:
    """The stream's key, the row's key and the argument of the fold that a record of a stream-keyed view has.

    The argument is an error if the record cannot be read. A record without a key has the row of NO_KEY.
    """
    try:
        return record.key, view.keys.encode(record.key), record.error or record.event
    except Exception as error:  # noqa: BLE001  # whatever it is, the record has no key
        return NO_KEY, view.keys.encode(NO_KEY), record.error or error


_LONGEST_ERROR = 500
"""The characters of an error that a checkpoint keeps: every flush writes them, and reads that wait fetch them."""


def parked_at(record: Decoded, error: Exception) -> Parked:
    """A row key that is parked at a record, which it cannot fold."""
    text = f"{type(error).__name__}: {shown(error, str)}"
    return Parked(record.topic, record.partition, record.offset, text[:_LONGEST_ERROR])


class StepwiseFold:
    """Folds one row event by event; only the final row must be storable, so an unstorable step parks nothing.

    `row` is what was folded so far and `good` the last of it that can be stored, behind the event `good_at` (None = the
    initial row). `parked` is the first event behind `good`, why the row cannot be stored since (or was not folded any
    further, if the fold itself failed), and how many events came; None = the row can be stored as it is. `time` is the
    latest event time in `good`.
    """

    def __init__(self, view: View[Any, Any], row: Any = None) -> None:
        self._view, self._evolve = view, view.evolve
        self.row = self.good = row
        self.good_at: Decoded | None = None
        self.parked: Parked | None = None
        self.time = self._latest = ""
        self._failed = False

    @property
    def version(self) -> int | None:
        """The stream's version in `good` where the view is stream-keyed, None otherwise."""
        return self.good_at.version if self.good_at is not None and self._view.stream_keyed else None

    def fold(self, item: Any, at: Decoded) -> None:
        """Folds one more event; `item` is an exception if it cannot be read."""
        if self._failed and self.parked is not None:
            self.parked = self.parked.with_another_event()
            return
        try:
            if isinstance(item, Exception):
                raise item
            row = self._evolve(self.row, item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self._failed = True
            self._failed_at(error, at)
            return
        self.row, self._latest = row, max(self._latest, at.time)
        try:
            if row is not None:
                check_storable(self._view, row)
        except Exception as error:  # noqa: BLE001  # so does one whose final row cannot be stored
            self._failed_at(error, at)
        else:
            self.good, self.good_at, self.time, self.parked = row, at, self._latest, None

    def _failed_at(self, error: Exception, at: Decoded) -> None:
        self.parked = parked_at(at, error) if self.parked is None else self.parked.with_another_event()
