"""Rows as they are folded in memory: their address, what the store was sent of them, and their next change."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

from leftfold.engine.views.decoding import Decoded
from leftfold.errors import ContractError
from leftfold.model.keys import partition_of
from leftfold.model.row_codec import Fields
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Parked, RowChange

__all__ = ["NO_KEY", "FoldedBucket", "FoldedRow", "RowAddress", "bucket_of", "place_of", "stored_row", "stream_row"]


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
