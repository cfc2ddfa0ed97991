"""Types of Python as columns, without Spark's machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa

from leftfold import Event
from leftfold.model.position import Recorded
from leftfold.spark.tables.columns import EventTable
from leftfold.spark.tables.log_frames import table_of


@dataclass(frozen=True)
class Node:
    name: str
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Pair:
    left: Node
    right: Node


class Planted(Event, category="trees", key="tree"):
    tree: str
    root: Node
    pair: Pair
    at: datetime | str
    days: tuple[date | int, ...] = ()


def planted(**fields: object) -> dict[str, object]:
    event = Planted.model_validate({"tree": "t", "root": Node("x"), "pair": Pair(Node("a"), Node("b")), **fields})
    table = EventTable(Planted)
    recorded = Recorded(event=event, key="t", id="", time=datetime(2026, 1, 1, tzinfo=UTC), version=1)
    (row,) = table_of([recorded], table.schema, table.row_of).to_pylist()
    return row


def test_what_a_record_holds_of_itself_is_text() -> None:
    node = pa.struct([("name", pa.string()), ("children", pa.list_(pa.string()))])
    schema = EventTable(Planted).schema
    assert (schema.field("root").type, schema.field("pair").type) == (
        node,
        pa.struct([("left", node), ("right", node)]),
    )
    row = planted(root=Node("x", (Node("y", (Node("z"),)),)), at="")
    assert row["root"] == {"name": "x", "children": ['{"name":"y","children":[{"name":"z","children":[]}]}']}


def test_times_and_dates_in_columns_of_text_are_no_quotations() -> None:
    row = planted(at=datetime(2026, 1, 1, 12, tzinfo=UTC), days=(date(2026, 1, 2), 3))
    assert (row["at"], row["days"]) == ("2026-01-01T12:00:00Z", ["2026-01-02", "3"])
    assert planted(at="noon")["at"] == "noon"
