"""The columns of an archive file: the record as it stands in the topic, and what SQL wants to see of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from leftfold.digits import number_in
from leftfold.moments import moment_in
from leftfold.ports import RawRecord

__all__ = ["READ", "SCHEMA", "table_of"]

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
"""The columns that make a record; the others are copies for SQL."""
_STRUCT: Any = pa.struct(_HEADERS)


def table_of(records: Sequence[RawRecord]) -> pa.Table:
    """Some records of one partition as rows."""
    first = records[0]
    names = [name for record in records for name, _ in record.headers]
    values = [value for record in records for _, value in record.headers]
    bounds = [0]
    for record in records:
        bounds.append(bounds[-1] + len(record.headers))
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=_HEADERS)
    told = [_told(dict(record.headers)) for record in records]
    columns: list[Any] = [
        pa.array([first.topic] * len(records), pa.string()),
        pa.array([first.partition] * len(records), pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.time * 1000 for record in records], pa.int64()).cast(_TIME),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs),
        *(pa.array(column, SCHEMA.field(7 + n).type) for n, column in enumerate(zip(*told, strict=True))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _told(found: dict[str, bytes | None]) -> tuple[str | None, int | None, int | None, datetime | None, str | None]:
    """Type, version, sequence, time and id as far as the headers tell; a record need be no event of ours."""
    name, version = _type(found.get("ce_type"))
    sequence = _text(found.get("ce_sequence"))
    return name, version, _number(sequence, 63), _time(found), _text(found.get("ce_id")) or None


@lru_cache(maxsize=1000)
def _type(value: bytes | None) -> tuple[str | None, int | None]:
    name, _, version = _text(value).rpartition(".v")
    return name or None, _number(version, 31)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def _number(text: str, bits: int) -> int | None:
    number = number_in(text)
    return number if number is not None and number < 1 << bits else None


def _time(found: dict[str, bytes | None]) -> datetime | None:
    return moment_in(found.get("ce_time") or b"")
