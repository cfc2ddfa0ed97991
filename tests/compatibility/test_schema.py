"""Schemas of any version of pydantic; JSON that is too deep or stands for too much is an error and never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model

from leftfold import Event, FoldView
from leftfold.compatibility import Lock
from leftfold.compatibility.schema import breaks, message_schema
from leftfold.errors import ConfigurationError, ContractError
from leftfold.parquet.manifest import Manifest
from leftfold.redis.stored_values import decoded, read_checkpoint
from tests.domains.ledger import Moved, Total, add

DEEP = "[" * 100_000
LOCK = '{"leftfold.lock": 1, "deciders": {%s}, "views": {}, "events": {%s}}'
MARK = {
    b"position": b"{}", b"checksum": b"0", b"token": b"", b"phase": b"live", b"rows": b"0", b"parked": DEEP.encode(),
    b"time": b"",
}  # fmt: skip


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda: Lock.from_json(DEEP), ConfigurationError),
        (lambda: Lock.from_json('{"leftfold.lock": 1, "deciders": ' + DEEP), ConfigurationError),
        (lambda: Lock.from_json(LOCK % ('"a": {"version": "1", "fold": ""}', "")), ConfigurationError),
        (lambda: Lock.from_json(LOCK % ("", '"a.B.v1": []')), ConfigurationError),
        (lambda: Manifest.from_json(DEEP.encode(), "there"), ContractError),
        (lambda: decoded("sums", {b"g:1": DEEP.encode()}), ContractError),
        (lambda: read_checkpoint(MARK, "sums"), ContractError),
    ],
)
def test_json_that_is_nested_too_deeply_is_refused(read: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        read()


def test_the_schema_hash_of_a_view_is_without_the_pattern_that_some_versions_of_pydantic_write_for_decimals() -> None:
    hashes = []
    for pattern in ({}, {"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, {"pattern": r"^\d*$"}):
        view = FoldView("totals", events=Moved, row=Total, key=lambda e: e.owner, evolve=add)
        view.rows.schema["properties"]["total"]["anyOf"] = [{"type": "number"}, {"type": "string", **pattern}]
        hashes.append(view.hash)
    assert hashes[0] == hashes[1] != hashes[2]


def layered(depth: int) -> dict[str, Any]:
    """A schema of a few hundred bytes that stands for 2^depth parts, its references resolved."""
    layers: dict[str, Any] = {
        f"L{n}": {"items": [{"$ref": f"#/$defs/L{n + 1}"}, {"$ref": f"#/$defs/L{n + 1}"}]} for n in range(depth)
    }
    return {"$defs": {**layers, f"L{depth}": {}}, "properties": {"field": {"$ref": "#/$defs/L0"}}}


def deep() -> dict[str, Any]:
    """A schema nested more deeply than functions may call each other."""
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    return {"properties": {"field": schema}}


@pytest.mark.parametrize("schema", [layered(40), deep(), {"properties": 1}, {"properties": {"field": 1}}])
def test_a_schema_that_is_too_deep_or_too_large_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match=r"take leftfold\.lock from version control"):
        breaks(schema, {"properties": {"field": {"type": "string"}}})


def test_equal_layered_schemas_are_compatible() -> None:
    assert breaks(layered(5), layered(5)) == []


REFERENCE = {"$ref": "#/$defs/Color"}


class Label(BaseModel):
    title: str


def test_names_are_compared_as_they_are_stored_and_aliases_only_where_they_are_written() -> None:
    def schemas(field: str, alias: str, *, written: bool) -> tuple[dict[str, Any], str, str]:
        config: Any = ConfigDict(validate_by_name=True, serialize_by_alias=written, frozen=True)
        fields: Any = {field: (int, Field(alias=alias))}
        inner = create_model("Inner", __config__=config, **fields)
        whole = create_model("Whole", __config__=config, **fields, inner=(inner, ...))

        class Sized(Event, category="sizes", key="name", name="Sized"):
            name: str
            whole: whole  # type: ignore[valid-type]  # made at run time

        rows = [
            FoldView("v", events=Sized, row=row, key=lambda e: e.name, evolve=lambda row, event: row)
            for row in (inner, whole)
        ]
        return message_schema(Sized), rows[0].hash, rows[1].hash

    for written in (False, True):
        released, row, nested = schemas("amount", "amt", written=written)
        renamed = schemas("total", "amt", written=written)
        aliased = schemas("amount", "sum", written=written)
        assert (breaks(released, renamed[0]) == []) is written
        assert (breaks(released, aliased[0]) == []) is not written
        assert row == aliased[1] != renamed[1], "a row is stored by the names of its fields"
        assert nested != renamed[2]
        assert (nested == aliased[2]) is not written


def test_a_field_has_the_alias_that_it_is_written_by_among_those_that_it_is_read_by() -> None:
    def schemas(written: str) -> tuple[dict[str, Any], str]:
        class Sum(BaseModel, frozen=True, serialize_by_alias=True):
            amount: int = Field(0, validation_alias=AliasChoices("total", "amt"), serialization_alias=written)

        class Sized(Event, category="sizes", key="name", name="Sized"):
            name: str
            sum: Sum

        whole: Any = create_model("Row", __config__=ConfigDict(frozen=True), sum=(Sum, ...))
        view = FoldView("v", events=Sized, row=whole, key=lambda e: e.name, evolve=lambda row, event: row)
        return message_schema(Sized), view.hash

    (released, row), (now, new) = schemas("amt"), schemas("total")
    assert [*released["$defs"]["Sum"]["properties"]] == ["amt"]
    assert breaks(released, now) != []
    assert row != new


def test_every_part_of_a_default_counts_and_so_does_a_field_with_the_name_of_a_keyword() -> None:
    def schema(title: str, more: dict[str, str]) -> dict[str, Any]:
        class Labelled(Event, category="labels", key="name", name="Labelled"):
            name: str
            default: str = Field("", title="The words for it")
            label: Label = Label(title=title)
            more_words: dict[str, str] = more

        return message_schema(Labelled)

    released = schema("Untitled", {"description": "a"})
    assert "title" not in released["properties"]["default"]
    assert breaks(released, schema("Untitled", {"description": "a"})) == []
    assert [found.partition(" has ")[0] for found in breaks(released, schema("Draft", {"description": "b"}))] == [
        "field label",
        "field more_words",
    ]


def test_the_order_of_the_members_of_an_enum_is_no_break_and_their_number_is() -> None:
    def schema(*members: str) -> dict[str, Any]:
        return {"$defs": {"Color": {"enum": [*members], "type": "string"}}, "properties": {"color": REFERENCE}}

    assert breaks(schema("red", "blue"), schema("blue", "red")) == []
    assert breaks(schema("red", "blue"), schema("blue", "red", "green")) != []
