"""Rows of an archive file as records: whole columns become lists at once, and a record is a place in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from leftfold.engine.bulk_log import BulkRecord
from leftfold.ports import Headers

__all__ = ["records_of"]

_LOG_APPEND_TIME = 2


class _Columns:
    """A batch of rows as lists; those that folds hardly ever want are made when they do.

    Nearly all records of a topic have the same headers in the same order: then `shape` holds their names once, and
    the values of a row are found by counting. Otherwise `shape` is empty, and `bounds` say where each row begins.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._offsets: Any = batch.column("offset")
        self._times: Any = batch.column("timestamp")
        self.keys: list[Any] = batch.column("key").to_pylist()
        self.wholes: list[Any] = batch.column("value").to_pylist()
        headers: Any = batch.column("headers")
        pairs: list[Any] = headers.flatten().flatten()
        names: Any = pairs[0]
        self.values: list[bytes] = pairs[1].to_pylist()
        self.width, rest = divmod(len(names), len(batch))
        same = not rest and names.slice(self.width).equals(names.slice(0, len(names) - self.width))
        even = same and headers.value_lengths().value_counts().field(0).to_pylist() == [self.width]
        self.shape: list[str] = names.slice(0, self.width).to_pylist() if even else []
        self._names: Any = names
        self._bounds: Any = headers.offsets

    @cached_property
    def offsets(self) -> list[int]:
        found: list[int] = self._offsets.to_pylist()
        return found

    @cached_property
    def times(self) -> list[int]:
        return [time // 1000 for time in self._times.cast(pa.int64()).to_pylist()]

    @cached_property
    def names(self) -> list[str]:
        found: list[str] = self._names.to_pylist()
        return found

    @cached_property
    def bounds(self) -> list[int]:
        found: list[int] = self._bounds.to_pylist()
        return [bound - found[0] for bound in found]


class _Row:
    """A BulkRecord; its headers are put together only when they are asked for."""

    __slots__ = ("_at", "_of")

    def __init__(self, of: _Columns, at: int) -> None:
        self._of, self._at = of, at

    def offset(self) -> int:
        return self._of.offsets[self._at]

    def key(self) -> bytes | None:
        return self._of.keys[self._at]  # type: ignore[no-any-return]  # a binary column

    def value(self) -> bytes | None:
        return self._of.wholes[self._at]  # type: ignore[no-any-return]  # a binary column

    def headers(self) -> Headers | None:
        of, at = self._of, self._at
        if of.shape:
            first = at * of.width
            return list(zip(of.shape, of.values[first : first + of.width], strict=False))
        first, end = of.bounds[at], of.bounds[at + 1]
        return list(zip(of.names[first:end], of.values[first:end], strict=True)) or None

    def timestamp(self) -> tuple[int, int]:
        return _LOG_APPEND_TIME, self._of.times[self._at]


def records_of(batch: pa.RecordBatch, start: int, end: int) -> Sequence[BulkRecord]:
    """The records of a batch whose offsets lie between `start` and `end` (not included)."""
    if not len(batch):
        return []
    of, offsets = _Columns(batch), batch.column("offset")
    if start <= _int(offsets[0]) and _int(offsets[-1]) < end:
        return [_Row(of, at) for at in range(len(batch))]
    return [_Row(of, at) for at, offset in enumerate(of.offsets) if start <= offset < end]


def _int(scalar: Any) -> int:
    return int(scalar.as_py())
