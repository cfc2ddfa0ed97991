"""Writes one Parquet file of an archive: the columns of records, in row groups, with a SHA-256 hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import lru_cache
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leftfold.errors import InfrastructureError
from leftfold.model.state_codec import number_in, time_in
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan
from leftfold.ports.protocols import RawRecord

__all__ = ["READ", "FileWriter", "table_of"]


_TIME = pa.timestamp("us", tz="UTC")
_HEADERS: list[Any] = [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]
_FIELDS: list[Any] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", _TIME, nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.struct(_HEADERS)), nullable=False),
    pa.field("type", pa.string()),
    pa.field("version", pa.int32()),
    pa.field("sequence", pa.int64()),
    pa.field("time", _TIME),
    pa.field("id", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
READ = ["offset", "timestamp", "key", "value", "headers"]
"""The columns that a record is read from; the others are copies for SQL."""


def table_of(records: Sequence[RawRecord]) -> pa.Table:
    """Converts records of one partition to an Arrow table."""
    first = records[0]
    names = [name for record in records for name, _ in record.headers]
    values = [value for record in records for _, value in record.headers]
    bounds = [0]
    for record in records:
        bounds.append(bounds[-1] + len(record.headers))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=_HEADERS)
    fields = [_header_fields(dict(record.headers)) for record in records]
    columns: list[Any] = [
        pa.array([first.topic] * len(records), pa.string()),
        pa.array([first.partition] * len(records), pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.time * 1000 for record in records], pa.int64()).cast(_TIME),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs),
        *(pa.array(column, SCHEMA.field(7 + n).type) for n, column in enumerate(zip(*fields, strict=True))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _header_fields(
    found: dict[str, bytes | None],
) -> tuple[str | None, int | None, int | None, datetime | None, str | None]:
    """The type, version, sequence, time and id in the headers; None for those that are missing or invalid."""
    name, version = _type(found.get("ce_type"))
    sequence, time = _text(found.get("ce_sequence")), time_in(found.get("ce_time") or b"")
    return name, version, _number(sequence, 63), time, _text(found.get("ce_id")) or None


@lru_cache(maxsize=1000)
def _type(value: bytes | None) -> tuple[str | None, int | None]:
    name, _, version = _text(value).rpartition(".v")
    return name or None, _number(version, 31)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(text: str, bits: int) -> int | None:
    number = number_in(text)
    return number if number is not None and number < 1 << bits else None


_GROUP_ROWS, _GROUP_BYTES = 20_000, 16 << 20
_EPOCH = date(1970, 1, 1)
_REPEATED: Any = ["topic", "type", "headers.list.element.name", "headers.list.element.value"]


class FileWriter:
    """Writes a Parquet file of consecutive records of one partition and one day.

    Args:
        start: the first offset that the file covers. day: days since 1970, in UTC.
    """

    def __init__(self, place: ArchiveFileSystem, topic: str, partition: int, start: int, day: int) -> None:
        self._place, self.day = place, day
        self.partition, self.start, self.records = partition, start, 0
        named = (_EPOCH + timedelta(days=day)).isoformat()
        self._path = f"day={named}/{partition:05d}-{start:020d}-{token_hex(4)}.parquet"
        self._name = f"{topic}/{self._path}"
        self._out = _Hashed(place.open_output(self._name))
        sink: Any = self._out
        self._file = place.asked(
            self._name,
            lambda: pq.ParquetWriter(
                sink,
                SCHEMA,
                compression="zstd",
                use_dictionary=_REPEATED,
                write_page_checksum=True,
                store_schema=True,
            ),
        )
        self._rows: list[RawRecord] = []
        self._bytes = 0

    def add(self, records: Sequence[RawRecord]) -> None:
        """Adds the next records to the file."""
        self._rows += records
        self.records += len(records)
        self._bytes += sum(len(record.value or b"") for record in records)
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self, end: int) -> OffsetSpan:
        """Completes the file, which covers all offsets below `end`; returns its span for the manifest."""
        self._write_group()
        self._place.asked(self._name, self._file.close)
        self._place.asked(self._name, self._out.close)
        self._place.sync(self._name)
        out = self._out
        return OffsetSpan(self.partition, self.start, end, self._path, self.records, out.bytes, out.sha256.hexdigest())

    def abandon(self) -> None:
        """Removes an incomplete file, which is in no manifest; one that cannot be removed stays as a stray."""
        # Nothing more is written to the disk, which may be full, but pyarrow must close the file.
        self._out.dead = True
        for step in (self._file.close, self._out.close, lambda: self._place.remove(self._name)):
            with suppress(OSError, pa.ArrowException, InfrastructureError):
                step()

    def _write_group(self) -> None:
        if self._rows:
            table = table_of(self._rows)
            self._place.asked(self._name, lambda: self._file.write_table(table))
            self._rows, self._bytes = [], 0


class _Hashed:
    """A file object for pyarrow that counts and hashes the bytes written to a stream."""

    def __init__(self, out: Any) -> None:
        self._out, self.sha256, self.bytes = out, hashlib.sha256(), 0
        self.closed = self.dead = False

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        if not self.dead:
            self._out.write(data)
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        self._out.flush()

    def close(self) -> None:
        self.closed = True
        self._out.close()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
