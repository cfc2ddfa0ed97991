"""Reads the records of an archive by offset or time, and checks sizes, page checksums, counts and order."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leftfold.engine.log_gaps import log_gap
from leftfold.errors import InfrastructureError
from leftfold.parquet.file_writer import READ
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan, Piece, end_of, pieces_of, read_manifests, union
from leftfold.ports.bulk import BulkRecord, ColumnarRecords, OffsetRange
from leftfold.ports.protocols import Headers

__all__ = ["ParquetArchive", "read_piece", "records_of"]


_LOG_APPEND_TIME = 2
_SLOTS = (3, 5, 6)
"""The header positions at which processors write ce_type, ce_time and ce_sequence."""


class _Columns:
    """The columns of a Parquet batch as lists.

    Nearly all records of a topic have the same headers in the same order: then `shape` holds their names once, and the
    values of a row are at fixed positions. Otherwise `shape` is empty, and `bounds` has the start of each row.
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
        """The values of one header of the shape, one per row."""
        found: list[bytes] = self._values.take(_places(number, self.width, len(self._batch))).to_pylist()
        return found

    def _column(self, name: str) -> list[Any]:
        found: list[Any] = self._batch.column(name).to_pylist()
        return found


@lru_cache(maxsize=64)
def _places(number: int, width: int, rows: int) -> Any:
    return pa.array(range(number, rows * width, width))


class _Row:
    """A BulkRecord in a batch, with headers built on demand."""

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


class _Rows(ColumnarRecords):
    """The BulkRecords of a batch."""

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

    def header_columns(self) -> Iterable[tuple[Any, ...]] | None:
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


_MANY = 1000


def read_piece(place: ArchiveFileSystem, folder: str, piece: Piece) -> Iterator[Sequence[BulkRecord]]:
    """Reads the records of a piece of a span, in batches.

    Raises:
        InfrastructureError: the file is missing, truncated or damaged.
    """
    span = piece.span
    if not span.path:
        return
    read, last = 0, span.start - 1
    with opened(place, folder, span) as file:
        for batch in file.iter_batches(_MANY, groups_of(file, piece), columns=READ, use_threads=False):
            records = records_of(batch, piece.start, piece.end)
            if records:
                if not last < records[0].offset() <= records[-1].offset() < span.end:
                    what = f"holds offset {records[-1].offset()}, which is not in its range"
                    raise _broken(place, f"{folder}/{span.path}", what)
                read, last = read + len(records), records[-1].offset()
                yield records
    if (piece.start, piece.end) == (span.start, span.end) and read != span.records:
        raise _broken(place, f"{folder}/{span.path}", f"gave {read:,} records, not {span.records:,}")


@contextmanager
def opened(place: ArchiveFileSystem, folder: str, span: OffsetSpan) -> Iterator[pq.ParquetFile]:
    """Opens the Parquet file of a span, and checks its numbers of bytes and records.

    Raises:
        InfrastructureError: the file is missing, truncated or damaged.
    """
    path = f"{folder}/{span.path}"
    size = place.size(path)
    if size != span.bytes:
        what = "is missing" if size is None else f"has {size:,} bytes, not {span.bytes:,}"
        raise _broken(place, path, what)
    try:
        with place.open_input(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            if file.metadata.num_rows != span.records:
                raise _broken(place, path, f"holds {file.metadata.num_rows:,} records, not {span.records:,}")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise _broken(place, path, f"cannot be read: {error}") from error


def groups_of(file: pq.ParquetFile, piece: Piece) -> list[int]:
    """The row groups that may hold records of the piece, according to their statistics."""
    column = file.schema_arrow.get_field_index("offset")
    found = []
    for number in range(file.num_row_groups):
        bounds: Any = file.metadata.row_group(number).column(column).statistics
        if bounds is None or not bounds.has_min_max or (bounds.max >= piece.start and bounds.min < piece.end):
            found.append(number)
    return found


def _broken(place: ArchiveFileSystem, path: str, what: str) -> InfrastructureError:
    category = path.partition("/")[0].removesuffix(".events")
    return InfrastructureError(
        f"the archive {place.name}: {path} {what}; nothing is folded from it. See the whole damage: "
        f"leftfold log verify-archive {category} --archive {shlex.quote(place.name)}; then restore the file from a copy"
    )


_DAY_MS = 86_400_000
_DAY = re.compile(r"day=(?P<day>\d{4}-\d\d-\d\d)/")
_EPOCH = date(1970, 1, 1)


def first_since(place: ArchiveFileSystem, folder: str, piece: Piece, time: int) -> int | None:
    """A piece's first offset at or after a time in ms since 1970, None if all records are older.

    Raises:
        InfrastructureError: the file is missing, truncated or damaged.
    """
    if not piece.span.path or _is_older(piece.span.path, time):
        return None
    with opened(place, folder, piece.span) as file:
        groups = [number for number in groups_of(file, piece) if _reaches(file, number, 1000 * time)]
        if not groups:
            return None
        for batch in file.iter_batches(_MANY, groups, columns=["offset", "timestamp"], use_threads=False):
            offsets: Any = batch.column("offset")
            times: Any = batch.column("timestamp")
            for offset, at in zip(offsets.to_pylist(), times.cast(pa.int64()).to_pylist(), strict=True):
                if piece.start <= offset < piece.end and at >= 1000 * time:
                    return int(offset)
    return None


def _is_older(path: str, time: int) -> bool:
    """Whether all records of a file are older, by the day in its name; a decision may end after midnight."""
    day = _DAY.match(path)
    return day is not None and (date.fromisoformat(day["day"]) - _EPOCH).days + 1 < time // _DAY_MS


def _reaches(file: pq.ParquetFile, group: int, microseconds: int) -> bool:
    """Whether a row group may have a record at or after a time, according to its statistics."""
    column = file.schema_arrow.get_field_index("timestamp")
    bounds: Any = file.metadata.row_group(group).column(column).statistics
    return bounds is None or not bounds.has_min_max or bool(bounds.max_raw >= microseconds)


class ParquetArchive:
    """An Archive of Parquet files in a directory; the manifests of a topic are read once."""

    def __init__(self, uri: str) -> None:
        self._place = ArchiveFileSystem(uri)
        self._topics: dict[str, dict[int, list[Piece]]] = {}
        self._identities: dict[str, set[str]] = {}

    @property
    def place(self) -> str:
        """The directory, without secrets, for messages."""
        return self._place.name

    def ends(self, topic: str) -> Mapping[int, int]:
        """The offset per partition up to which the archive is complete from 0 on."""
        return {partition: end_of(pieces) for partition, pieces in self._pieces(topic).items()}

    def identity(self, topic: str) -> str:
        """The id of the topic that was archived.

        Raises:
            InfrastructureError: the directory has manifests of several topics.
        """
        self._pieces(topic)
        found = sorted(self._identities[topic])
        if len(found) > 1:
            raise InfrastructureError(
                f"{self.place}/{topic} holds manifests of several topics of that name, {' and '.join(found)}; they are "
                f"not one log: keep each in a directory of its own"
            )
        return found[0] if found else ""

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """Reads the records of an offset range, file after file."""
        for piece in self._within(part):
            yield from read_piece(self._place, part.topic, piece)

    def since(self, part: OffsetRange, time: int) -> int | None:
        """A range's first offset at or after a time in ms since 1970, None if all records are older."""
        found = (first_since(self._place, part.topic, piece, time) for piece in self._within(part))
        return next((offset for offset in found if offset is not None), None)

    def _within(self, part: OffsetRange) -> Iterator[Piece]:
        """The pieces of an offset range, in order."""
        pieces = self._pieces(part.topic).get(part.partition, [])
        if part.end > end_of(pieces):
            raise log_gap(part.topic, part.partition, max(part.start, end_of(pieces)), part.end, archive=self.place)
        for piece in pieces:
            start, end = max(piece.start, part.start), min(piece.end, part.end)
            if start < end:
                yield Piece(piece.span, start, end)

    def _pieces(self, topic: str) -> dict[int, list[Piece]]:
        if topic not in self._topics:
            manifests = read_manifests(self._place, topic)
            self._identities[topic] = {manifest.identity for manifest in manifests}
            spans = union(manifests)
            self._topics[topic] = {partition: pieces_of(found) for partition, found in spans.items()}
        return self._topics[topic]
