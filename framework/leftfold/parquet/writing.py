"""Writes one file of an archive: rows in groups, hashed on their way, on the disk before anybody is told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import date, timedelta
from secrets import token_hex
from typing import Any

import pyarrow.parquet as pq

from leftfold.parquet.manifest import Span
from leftfold.parquet.place import Place
from leftfold.parquet.schema import SCHEMA, table_of
from leftfold.ports import RawRecord

__all__ = ["FileWriter"]

_GROUP_ROWS, _GROUP_BYTES = 20_000, 16 << 20
_EPOCH = date(1970, 1, 1)
_REPEATED: Any = ["topic", "type", "headers.list.element.name", "headers.list.element.value"]


class FileWriter:
    """A file of records that follow each other in one partition, all of one day.

    Args:
        start: the first offset that the file accounts for. day: days since 1970, in UTC.
    """

    def __init__(self, place: Place, topic: str, partition: int, start: int, day: int) -> None:
        self._place, self.day = place, day
        self.partition, self.start, self.records = partition, start, 0
        named = (_EPOCH + timedelta(days=day)).isoformat()
        self._path = f"day={named}/{partition:05d}-{start:020d}-{token_hex(4)}.parquet"
        self._name = f"{topic}/{self._path}"
        self._out = _Hashed(place.open_output(self._name))
        sink: Any = self._out
        self._file = pq.ParquetWriter(
            sink,
            SCHEMA,
            compression="zstd",
            use_dictionary=_REPEATED,
            write_page_checksum=True,
            store_schema=True,
        )
        self._rows: list[RawRecord] = []
        self._bytes = 0

    def add(self, records: Sequence[RawRecord]) -> None:
        """Adds the next records."""
        self._rows += records
        self.records += len(records)
        self._bytes += sum(len(record.value or b"") for record in records)
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self, end: int) -> Span:
        """Ends the file, which accounts for every offset below `end`; what a manifest is to say of it."""
        self._write_group()
        self._place.asked(self._name, self._file.close)
        self._place.asked(self._name, self._out.close)
        self._place.sync(self._name)
        out = self._out
        return Span(self.partition, self.start, end, self._path, self.records, out.bytes, out.sha256.hexdigest())

    def abandon(self) -> None:
        """Lets go of a file that is not to be; nothing names it."""
        # Nothing more goes to the disk, which may be full, but pyarrow wants to end what it has begun.
        self._out.dead = True
        self._file.close()
        self._out.close()
        self._place.remove(self._name)

    def _write_group(self) -> None:
        if self._rows:
            table = table_of(self._rows)
            self._place.asked(self._name, lambda: self._file.write_table(table))
            self._rows, self._bytes = [], 0


class _Hashed:
    """What is written to a stream, counted and hashed; pyarrow takes it for a file."""

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
