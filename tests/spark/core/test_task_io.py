"""What tasks send back to Spark: batches of rows that are bounded by number and by bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from leftfold.engine.rebuild.sorted_fold import KeyedUpdate
from leftfold.ports.protocols import RawRecord
from leftfold.spark.core.task_io import batches_by_size, item_batches, items_in, line_batches
from leftfold.spark.tables.log_frames import tables_of

MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([], []),
        ([1] * 7, [3, 3, 1]),
        ([16 * MB, 0, 0, 0], [1, 3]),
        ([8 * MB, 8 * MB, 8 * MB], [2, 1]),
        ([40 * MB, 40 * MB], [1, 1]),
    ],
)
def test_a_batch_ends_with_its_number_of_items_or_at_16_mb(sizes: list[int], counts: list[int]) -> None:
    batches = list(batches_by_size(sizes, lambda size: size, most=3))
    assert [len(batch) for batch in batches] == counts
    assert [size for batch in batches for size in batch] == sizes


def test_updates_with_large_bodies_come_in_several_batches() -> None:
    items = [KeyedUpdate(0, "k", 0, offset, 0, b"x" * MB, "") for offset in range(40)]
    batches = list(item_batches(items))
    assert [batch.num_rows for batch in batches] == [16, 16, 8]
    assert list(items_in(iter(batches))) == items


def test_large_events_come_in_several_batches_whether_they_are_in_the_table_or_not() -> None:
    records = [RawRecord("t.events", 0, offset, b"k", b"x" * MB, (), 0) for offset in range(40)]

    def row(record: RawRecord) -> dict[str, Any] | None:
        return {"value": record.value} if record.offset % 2 else None

    batches = list(tables_of(records, pa.schema([("value", pa.binary())]), row, None))
    assert [batch.num_rows for batch in batches] == [8, 8, 4]


def test_every_line_has_a_batch_of_its_own() -> None:
    assert [batch.column(0).to_pylist() for batch in line_batches(["a", "", "b"])] == [["a"], [""], ["b"]]
