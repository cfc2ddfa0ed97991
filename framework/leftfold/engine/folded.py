"""What a follower remembers between flushes: rows as they are folded, and buckets as the next marks will tell them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leftfold.errors import ContractError
from leftfold.flush import Mark, Parked, RowChange
from leftfold.view import View

__all__ = ["FoldedBucket", "FoldedRow", "stored_row"]

_change: Any = tuple.__new__


@dataclass(slots=True)
class FoldedBucket:
    """One bucket: `checksum` and `rows` as sent last, `parked` and `time` with every event folded in since.

    `is_whole` says whether all of its rows are in memory, so that none needs reading: it was empty, and none has been
    forgotten since. Whoever has put some there meanwhile has changed the mark's token.
    """

    checksum: int
    rows: int
    parked: dict[str, Parked]
    time: str
    is_whole: bool
    stuck: list[FoldedRow] = field(default_factory=list)
    """The rows that were parked since the last flush, whose digests are still in the checksum."""

    @classmethod
    def of(cls, mark: Mark) -> FoldedBucket:
        """The bucket as its mark tells it."""
        return cls(mark.checksum, mark.rows, dict(mark.parked), mark.time, not mark.rows)

    def settle(self) -> None:
        """Takes rows that are parked out of the checksum."""
        for row in self.stuck:
            self.checksum -= row.digest
            row.digest = 0
        self.stuck.clear()


@dataclass(slots=True)
class FoldedRow:
    """A row: `row` is None where there is none, and a ContractError where what is stored cannot be read.

    `digest`, `indexed` and `there` say what the store was sent last, so that the next flush can take it back.
    """

    bucket: FoldedBucket
    key: str
    row: Any
    digest: int = 0
    indexed: tuple[str, ...] | None = None
    there: bool = False
    version: int | None = None

    def change(self, view: View[Any, Any]) -> RowChange:
        """What the next flush does to the row, which is taken for sent from now on; raises if it cannot be encoded."""
        row, before, bucket = self.row, self.indexed, self.bucket
        if row is None:
            fields, now, digest = None, None, 0
        else:
            rows = view.rows
            fields = rows.encode(row)
            now = rows.index_entries(row) if rows.indexes else ()
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
    try:
        row = rows.decode(fields)
        digest = rows.digest(key, tuple([fields[column] for column in rows.columns]))
        return FoldedRow(bucket, key, row, digest, rows.index_entries(row), there=True)
    except ContractError as error:
        return FoldedRow(bucket, key, error, there=True)
