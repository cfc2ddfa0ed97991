"""Items and lines as Arrow: how they travel between the stages of a job and back to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from leftfold.engine.bulk_items import Item

__all__ = ["ITEM", "Batches", "item_batch", "items_in", "line_batches"]

Batches: TypeAlias = Iterator[pa.RecordBatch]
ITEM = "bucket int, key string, source int, offset long, nth int, body binary, time string"
_FIELDS: list[Any] = [
    ("bucket", pa.int32()),
    ("key", pa.string()),
    ("source", pa.int32()),
    ("offset", pa.int64()),
    ("nth", pa.int32()),
    ("body", pa.binary()),
    ("time", pa.string()),
]
_ITEM_ARROW = pa.schema(_FIELDS)
_LINE_ARROW = pa.schema([("line", pa.string())])


def item_batch(items: Sequence[Item]) -> pa.RecordBatch:
    """Some items as one batch."""
    columns = zip(zip(*items, strict=True), _ITEM_ARROW, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(c, field.type) for c, field in columns], schema=_ITEM_ARROW)


def items_in(batches: Batches) -> Iterator[Item]:
    """The items in batches, in their order."""
    return (
        Item._make(row)
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )


def line_batches(lines: Iterable[str]) -> Batches:
    """Lines as they come, each in a batch of its own: the driver collects few."""
    for line in lines:
        yield pa.RecordBatch.from_arrays([pa.array([line], pa.string())], schema=_LINE_ARROW)
