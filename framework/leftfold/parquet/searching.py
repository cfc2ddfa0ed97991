"""Finds the first record of an archive that is not older than a time; of most files nothing but the name is read."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from leftfold.parquet.coverage import Piece
from leftfold.parquet.place import Place
from leftfold.parquet.reading import groups_of, opened

__all__ = ["first_since"]

_DAY_MS = 86_400_000
_DAY = re.compile(r"day=(?P<day>\d{4}-\d\d-\d\d)/")
_EPOCH = date(1970, 1, 1)
_MANY = 1000


def first_since(place: Place, folder: str, piece: Piece, time: int) -> int | None:
    """The offset of a piece's first record at or after a time in ms since 1970, None when all are older.

    Raises:
        InfrastructureError: the file is missing, torn or damaged.
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
    """Whether a file's name tells that all of it is older; a decision that begins before midnight may end after it."""
    day = _DAY.match(path)
    return day is not None and (date.fromisoformat(day["day"]) - _EPOCH).days + 1 < time // _DAY_MS


def _reaches(file: pq.ParquetFile, group: int, microseconds: int) -> bool:
    """Whether any record of a row group may be as young as a time, as far as its statistics tell."""
    column = file.schema_arrow.get_field_index("timestamp")
    told: Any = file.metadata.row_group(group).column(column).statistics
    return told is None or not told.has_min_max or bool(told.max_raw >= microseconds)
