"""Types of Python as columns, without Spark's machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, NewType

import pyarrow as pa
import pytest
from pydantic import ConfigDict, Field
from typing_extensions import TypeAliasType

from leftfold import Event
from leftfold.model.position import Recorded
from leftfold.spark.queries.compute import _cast, _fits
from leftfold.spark.tables.columns import DECIMAL, EventTable, arrow_type
from leftfold.spark.tables.log_frames import table_of


@dataclass(frozen=True)
class Node:
    name: str
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Pair:
    left: Node
    right: Node


Cents = NewType("Cents", int)
Debt = NewType("Debt", Cents)
Amount = TypeAliasType("Amount", Annotated[Decimal, Field(max_digits=12, decimal_places=2)])
Number = TypeAliasType("Number", Decimal)
Long = Annotated[Number, Field(decimal_places=20)]


class Planted(Event, category="trees", key="tree"):
    tree: str
    root: Node
    pair: Pair
    at: datetime | str
    days: tuple[date | int, ...] = ()


def planted(**fields: object) -> dict[str, object]:
    fields = {"tree": "t", "root": Node("x"), "pair": Pair(Node("a"), Node("b")), **fields}
    return row_of(Planted.model_validate(fields))


def row_of(event: Event) -> dict[str, object]:
    table = EventTable(type(event))
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


@pytest.mark.parametrize(
    ("hint", "type_"),
    [
        (Cents, pa.int64()),
        (Debt | None, pa.int64()),
        (list[Cents], pa.list_(pa.int64())),
        (Amount, DECIMAL),
        (dict[str, Amount], pa.map_(pa.string(), DECIMAL)),
        (Long, pa.string()),
    ],
)
def test_a_name_of_a_type_is_the_type(hint: Any, type_: pa.DataType) -> None:
    """As text, numbers would be compared digit by digit."""
    assert arrow_type(hint) == type_


def test_a_row_may_have_a_field_of_a_name_of_a_type() -> None:
    assert _fits(Amount, pa.decimal128(18, 2))
    assert _fits(Cents | None, pa.int64())
    assert not _fits(Amount, pa.string())
    assert [_cast(hint) for hint in (Amount, Cents | None)] == [" (CAST it AS DECIMAL(18, 2))", " (CAST it AS BIGINT)"]


class Scanned(Event, category="trees", key="tree"):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    tree: str
    picture: bytes
    pages: dict[str, bytes | None]
    seal: bytes | int


def test_bytes_are_binary_and_base64_within_text() -> None:
    other = b"\xff\x00"
    row = row_of(Scanned(tree="t", picture=other, pages={"a": other, "b": None}, seal=other))
    assert row == row | {"picture": other, "pages": [("a", other), ("b", None)], "seal": "_wA="}
