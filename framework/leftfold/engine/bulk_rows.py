"""Rows that a query has computed, on their way into buckets: finished, keyed, each key once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from leftfold.engine.bulk import BulkJob
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow
from leftfold.errors import ContractError
from leftfold.keys import NoRowKey
from leftfold.partitioner import partition_of
from leftfold.printable import shown
from leftfold.query import TableView
from leftfold.rows import CHECKSUM_MODULUS, Fields
from leftfold.streamed import StreamedView

__all__ = ["ComputedRow", "computed", "computed_all", "write_computed"]


class ComputedRow(NamedTuple):
    """An encoded row with its bucket; sorted, rows of one key are side by side."""

    bucket: int
    key: str
    fields: Fields
    entries: tuple[str, ...]


def computed(view: TableView[Any, Any] | StreamedView[Any, Any], row: Any, buckets: int) -> ComputedRow:
    """A row as it will be stored in a generation of so many buckets.

    Raises:
        NoRowKey: the view's `key` gives an empty text, or one that cannot be stored.
        ContractError: it fails on the row, or gives something else than its type.
    """
    try:
        key = view.row_key(row)
        return ComputedRow(
            partition_of(key.encode(), buckets), key, view.rows.encode(row), view.rows.index_entries(row)
        )
    except Exception as error:
        kind = NoRowKey if isinstance(error, NoRowKey) else ContractError
        raise kind(f"view {view.name}: the row {shown(row)} cannot be stored: {shown(error, str)}") from error


def computed_all(
    view: TableView[Any, Any], rows: Iterable[Any], buckets: int, unnamed: Callable[[Any], None]
) -> list[ComputedRow]:
    """Rows as they will be stored; those whose key names none are left out and given to `unnamed`."""
    found = []
    for row in rows:
        try:
            found.append(computed(view, row, buckets))
        except NoRowKey:
            unnamed(row)
    return found


def write_computed(job: BulkJob, rows: Iterable[ComputedRow]) -> Iterator[BucketResult]:
    """Writes the sorted rows of some whole buckets.

    Raises:
        ContractError: two rows have one key.
        Fenced: the generation was finished or abandoned meanwhile.
    """
    sink = job.open_sink()
    try:
        for bucket, group in groupby(rows, attrgetter("bucket")):
            tally = _Tally(job.view)
            rows_ = tally.counted(group)
            sink.write(job.generation, bucket, job.view.rows.columns, job.view.rows.indexes, rows_)
            yield BucketResult(bucket, tally.checksum % CHECKSUM_MODULUS, tally.count)
    finally:
        sink.close()


class _Tally:
    """Counts the rows of a bucket and adds up their digests while they are written."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.checksum = self.count = 0

    def counted(self, rows: Iterable[ComputedRow]) -> Iterator[BulkRow]:
        last = None
        for row in rows:
            if row.key == last:
                raise ContractError(
                    f"view {self._view.name}: the query gives several rows for the key {row.key}; "
                    f"group by what the key is made of, or make the key of more columns"
                )
            last = row.key
            self.count += 1
            self.checksum += self._view.rows.digest(row.key, row.fields)
            yield BulkRow(row.key, row.fields, None, row.entries)
