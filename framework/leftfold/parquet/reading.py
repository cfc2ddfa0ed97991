"""Reads one file of an archive, and believes nothing that it can check: size, page checksums, counts and order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leftfold.engine.bulk_log import BulkRecord
from leftfold.errors import InfrastructureError
from leftfold.parquet.coverage import Piece
from leftfold.parquet.manifest import Span
from leftfold.parquet.place import Place
from leftfold.parquet.records import records_of
from leftfold.parquet.schema import READ

__all__ = ["groups_of", "opened", "read_piece"]

_MANY = 1000


def read_piece(place: Place, folder: str, piece: Piece) -> Iterator[Sequence[BulkRecord]]:
    """The records of a piece of a span, in batches.

    Raises:
        InfrastructureError: the file is missing, torn or damaged.
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
def opened(place: Place, folder: str, span: Span) -> Iterator[pq.ParquetFile]:
    """A span's file, which has as many bytes and records as were written.

    Raises:
        InfrastructureError: the file is missing, torn or damaged.
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
    """The row groups that hold any of the piece, as their statistics tell."""
    column = file.schema_arrow.get_field_index("offset")
    found = []
    for number in range(file.num_row_groups):
        told: Any = file.metadata.row_group(number).column(column).statistics
        if told is None or not told.has_min_max or (told.max >= piece.start and told.min < piece.end):
            found.append(number)
    return found


def _broken(place: Place, path: str, what: str) -> InfrastructureError:
    category = path.partition("/")[0].removesuffix(".events")
    return InfrastructureError(
        f"the archive {place.name}: {path} {what}; nothing is folded from it. See the whole damage: "
        f"leftfold log verify-archive {category} --archive {place.name}; then restore the file from a copy"
    )
