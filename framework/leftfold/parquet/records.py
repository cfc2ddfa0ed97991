"""Rows of an archive file as records: columns become lists when they are asked for, and a record is a place in them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from leftfold.engine.bulk_log import BulkRecord, ToldRecords
from leftfold.ports import Headers

__all__ = ["records_of"]

_LOG_APPEND_TIME = 2
_SLOTS = (3, 5, 6)
"""Where lanes put ce_type, ce_time and ce_sequence."""


class _Columns:
    """A batch of rows as lists.

    Nearly all records of a topic have the same headers in the same order: then `shape` holds their names once, and
    the values of a row are found by counting. Otherwise `shape` is empty, and `bounds` say where each row begins.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        headers: Any = batch.column("headers")
        pairs: list[Any] = headers.flatten().flatten()
        names: Any = pairs[0]
        self.width, rest = divmod(len(names), len(batch))
        same = not rest and names.slice(self.width).equals(names.slice(0, len(names) - self.width))
        even = same and headers.value_lengths().value_counts().field(0).to_pylist() == [self.width]
        self.shape: list[str] = names.slice(0, self.width).to_pylist() if even else []
        self._names, self._values, self._bounds = names, pairs[1], headers.offsets

    @cached_property
    def offsets(self) -> list[int]:
        return self._column("offset")

    @cached_property
    def times(self) -> list[int]:
        times: Any = self._batch.column("timestamp")
        return [time // 1000 for time in times.cast(pa.int64()).to_pylist()]

    @cached_property
    def keys(self) -> list[bytes | None]:
        return self._column("key")

    @cached_property
    def wholes(self) -> list[bytes | None]:
        return self._column("value")

    @cached_property
    def values(self) -> list[bytes]:
        found: list[bytes] = self._values.to_pylist()
        return found

    @cached_property
    def names(self) -> list[str]:
        found: list[str] = self._names.to_pylist()
        return found

    @cached_property
    def bounds(self) -> list[int]:
        found: list[int] = self._bounds.to_pylist()
        return [bound - found[0] for bound in found]

    def slot(self, number: int) -> list[bytes]:
        """The values of one header of the shape, row by row."""
        found: list[bytes] = self._values.take(_places(number, self.width, len(self._batch))).to_pylist()
        return found

    def _column(self, name: str) -> list[Any]:
        found: list[Any] = self._batch.column(name).to_pylist()
        return found


@lru_cache(maxsize=64)
def _places(number: int, width: int, rows: int) -> Any:
    return pa.array(range(number, rows * width, width))


class _Row:
    """A BulkRecord; its headers are put together only when they are asked for."""

    __slots__ = ("_at", "_of")

    def __init__(self, of: _Columns, at: int) -> None:
        self._of, self._at = of, at

    def offset(self) -> int:
        return self._of.offsets[self._at]

    def key(self) -> bytes | None:
        return self._of.keys[self._at]

    def value(self) -> bytes | None:
        return self._of.wholes[self._at]

    def headers(self) -> Headers | None:
        of, at = self._of, self._at
        if of.shape:
            first = at * of.width
            return list(zip(of.shape, of.values[first : first + of.width], strict=False))
        first, end = of.bounds[at], of.bounds[at + 1]
        return list(zip(of.names[first:end], of.values[first:end], strict=True)) or None

    def timestamp(self) -> tuple[int, int]:
        return _LOG_APPEND_TIME, self._of.times[self._at]


class _Rows(ToldRecords):
    """The records of a batch."""

    def __init__(self, of: _Columns, rows: int) -> None:
        self._of, self._rows = of, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [_Row(self._of, place) for place in range(*at.indices(self._rows))]
        if not -self._rows <= at < self._rows:
            raise IndexError(at)
        return _Row(self._of, at % self._rows)

    def __iter__(self) -> Iterator[BulkRecord]:
        return (_Row(self._of, at) for at in range(self._rows))

    def told(self) -> Iterable[tuple[Any, ...]] | None:
        of = self._of
        if [of.shape[number : number + 1] for number in _SLOTS] != [["ce_type"], ["ce_time"], ["ce_sequence"]]:
            return None
        return zip(*map(of.slot, _SLOTS), of.keys, of.wholes, strict=True)


def records_of(batch: pa.RecordBatch, start: int, end: int) -> Sequence[BulkRecord]:
    """The records of a batch whose offsets lie between `start` and `end` (not included)."""
    offsets: Any = batch.column("offset")
    if len(batch) and not (start <= offsets[0].as_py() and offsets[-1].as_py() < end):
        there: list[int] = offsets.to_pylist()
        first, last = bisect_left(there, start), bisect_left(there, end)
        batch = batch.slice(first, max(0, last - first))
    return _Rows(_Columns(batch), len(batch)) if len(batch) else []
