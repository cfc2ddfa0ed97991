"""Models inside state and rows are encoded as dataclasses are there: sorted, in UTC, and with tagged unions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    RootModel,
    computed_field,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from leftfold import ContractError
from leftfold.model.row_codec import RowCodec
from leftfold.model.state_codec import Storage

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
ELSEWHERE = AT.astimezone(timezone(timedelta(hours=3)))


class Firm(BaseModel):
    model_config = ConfigDict(frozen=True)


class A(Firm):
    x: int = 0


class B(Firm):
    x: int = 0


class Strict(Firm, extra="forbid"):
    x: int = 0

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def twice(self) -> int:
        return 2 * self.x


class Checked(Firm):
    x: int = 0

    @model_validator(mode="after")
    def is_small(self) -> Checked:
        if self.x > 9:
            raise ValueError("too large")
        return self


@pydantic_dataclass(frozen=True)
class Quick:
    one: A | B
    tags: frozenset[str] = frozenset()


class Holder(Firm):
    one: A | B | Strict | Checked
    tags: frozenset[str] = frozenset()
    prices: Mapping[str, Decimal] = {}
    at: datetime | None = None
    others: tuple[Holder, ...] = ()
    quick: Quick | None = None


class Whole(RootModel):  # type: ignore[type-arg]  # with an argument its root has no type here
    model_config = ConfigDict(frozen=True)
    root: frozenset[str]


class Tree(Firm):
    leaves: frozenset[str]
    holder: Holder
    whole: Whole = Whole(frozenset())
    left: Tree | None = None
    _count: int = PrivateAttr(7)

    @property
    def count(self) -> int:
        return self._count

    def model_post_init(self, context: object, /) -> None:
        self._count = len(self.leaves)


@dataclass(frozen=True)
class Row:
    tree: Tree
    trees: tuple[Tree, ...] = ()
    either: A | Checked | None = None


WORDS = frozenset({"a", "b", "c", "d", "e", "f", "g", "h"})
HOLDER = Holder(
    one=B(x=1),
    tags=WORDS,
    prices={"b": Decimal(2), "a": Decimal(1)},
    at=ELSEWHERE,
    others=(Holder(one=Strict(x=2)), Holder(one=Checked(x=3))),
    quick=Quick(B(x=4), WORDS),
)
TREE = Tree(leaves=WORDS, holder=HOLDER, whole=Whole(WORDS))
ROW = Row(TREE, (Tree(leaves=WORDS, holder=HOLDER, left=TREE),), Checked(x=1))
STORED = (
    b'{"one":{"@":"B","x":1},"tags":["a","b","c","d","e","f","g","h"],"prices":{"a":"1","b":"2"},'
    b'"at":"2026-01-01T12:00:00Z","others":['
    b'{"one":{"@":"Strict","x":2,"twice":4},"tags":[],"prices":{},"at":null,"others":[],"quick":null},'
    b'{"one":{"@":"Checked","x":3},"tags":[],"prices":{},"at":null,"others":[],"quick":null}],'
    b'"quick":{"one":{"@":"B","x":4},"tags":["a","b","c","d","e","f","g","h"]}}'
)


def storage_of(type_: Any) -> Storage[Any]:
    return Storage(type_, "test")


@pytest.mark.parametrize(
    "value",
    [HOLDER, TREE, ROW, Quick(B()), Whole(WORDS), Holder(one=Checked(x=9)), B(x=1)],
    ids=lambda value: type(value).__name__,
)
def test_a_model_at_any_depth_comes_back_as_what_it_was(value: Any) -> None:
    storage = storage_of(type(value))
    again = storage.decode(storage.encode_checked(value))
    assert again == value
    assert repr(again) == repr(storage.decode(storage.encode(again)))
    assert storage.encode(again) == storage.encode(value)


def test_what_is_inside_a_model_is_sorted_in_utc_and_tagged() -> None:
    assert storage_of(Holder).encode(HOLDER) == STORED
    again = storage_of(tuple[Tree, ...]).decode(storage_of(tuple[Tree, ...]).encode((TREE,)))[0]
    assert type(again.holder.one) is B
    assert [type(other.one) for other in again.holder.others] == [Strict, Checked]
    assert (again.count, again.model_fields_set) == (8, {"leaves", "holder", "whole", "left"})


def test_rows_and_their_fields_are_encoded_alike() -> None:
    codec = RowCodec(Holder, (), "test")
    fields = dict(zip(codec.columns, codec.encode(HOLDER), strict=True))
    assert fields[b"one"] == b'{"@":"B","x":1}'
    assert codec.decode(fields) == HOLDER


def test_two_processes_write_the_same_bytes() -> None:
    code = "from tests.model.test_stored_models import *; print(Storage(Row, '', canonical=False).encode(ROW).decode())"
    written = {
        subprocess.run(  # this interpreter, with our own code
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(written) == 1


class Plain(Firm):
    n: int


class Fuller(Firm):
    n: int
    m: int = 0


class Older(Firm):
    one: Plain | Fuller
    at: datetime = AT


@dataclass(frozen=True)
class OlderRow:
    older: Older
    checked: Checked | Fuller | None = None


def test_what_pydantic_alone_wrote_is_still_read() -> None:
    rows = storage_of(OlderRow)
    naive = AT.replace(tzinfo=None)
    stored = b'{"older":{"one":{"n":1,"m":2},"at":"2026-01-01T12:00:00"},"checked":{"n":1,"m":1}}'
    assert rows.decode(stored) == OlderRow(Older(one=Fuller(n=1, m=2), at=naive), Fuller(n=1, m=1))
    assert rows.decode(b'{"older":{"one":{"n":1}}}') == OlderRow(Older(one=Plain(n=1)))
    with pytest.raises(ContractError, match="stored bytes"):
        rows.decode(b'{"older":{"one":{"@":"Other","n":1}}}')
    with pytest.raises(ContractError, match="has no time zone; rows and state"):
        rows.encode_checked(OlderRow(Older(one=Plain(n=1), at=naive)))
    with pytest.raises(ContractError, match="is B, and the field holds 'Plain', 'Fuller'$"):
        rows.encode_checked(OlderRow(Older.model_construct(one=B())))


ran: list[str] = []


class Busy(Firm):
    """Its validators count, and its own __init__ takes what no field is."""

    amount: int
    one: A | B

    def __init__(self, text: str, one: A | B) -> None:
        ran.append("init")
        super().__init__(amount=text, one=one)  # type: ignore[call-arg]  # they are fields of this class

    @field_validator("amount", mode="before")
    @classmethod
    def parsed(cls, amount: object) -> object:
        ran.append("field")
        return amount

    @model_validator(mode="before")
    @classmethod
    def before(cls, data: Any) -> Any:
        ran.append("before")
        return data

    @model_validator(mode="after")
    def after(self) -> Busy:
        ran.append("after")
        return self


def test_validators_of_a_model_run_once_when_it_is_read_and_its_init_does_not() -> None:
    value, storage = (Busy("1", B()),), storage_of(tuple[Busy, ...])
    stored = storage.encode_checked(value)
    ran.clear()
    assert storage.decode(stored) == value
    assert ran == ["before", "field", "after"]
    with pytest.raises(ContractError, match="too large"):
        storage_of(tuple[Checked, ...]).decode(b'[{"x":10}]')


class Shown(Firm):
    """Its fields have serializers of their own."""

    tags: frozenset[str]
    at: datetime
    days: int

    @field_serializer("tags", mode="wrap")
    def joined(self, tags: frozenset[str], handler: Any) -> str:
        return "+".join(handler(tags))

    @field_serializer("at")
    def seconds(self, at: datetime) -> int:
        return int(at.timestamp())

    @field_validator("tags", mode="before")
    @classmethod
    def split(cls, tags: Any) -> Any:
        return tags.split("+") if isinstance(tags, str) else tags

    @model_serializer(mode="wrap")
    def longer(self, handler: Any) -> dict[str, Any]:
        return {**handler(self), "kind": "shown"}


@dataclass(frozen=True)
class ShownRow:
    shown: Shown | A


def test_the_serializers_of_a_model_are_used() -> None:
    row, storage = ShownRow(Shown(tags=WORDS, at=AT, days=1)), storage_of(ShownRow)
    stored = b'{"shown":{"@":"Shown","tags":"a+b+c+d+e+f+g+h","at":1767268800,"days":1,"kind":"shown"}}'
    assert storage.encode_checked(row) == stored
    assert storage.decode(stored) == row


class Odd(Firm):
    """Its fields have the names of parts of pydantic's schemas, and its default looks like one."""

    metadata: frozenset[str]
    serialization: datetime
    default: A | B
    config: frozenset[str]
    type: frozenset[str]
    fields: frozenset[str] = WORDS


@dataclass(frozen=True)
class OddRow:
    metadata: frozenset[str]
    serialization: datetime
    config: A | B
    by_type: Mapping[str, Mapping[str, str]]


def test_fields_may_have_the_names_of_parts_of_a_schema() -> None:
    odd = Odd(metadata=WORDS, serialization=ELSEWHERE, default=B(), config=WORDS, type=WORDS)
    assert storage_of(Odd).decode(storage_of(Odd).encode_checked(odd)) == odd
    stored = {
        name: part["@"] if isinstance(part, dict) else part
        for name, part in json.loads(storage_of(Odd).encode(odd)).items()
    }
    letters = sorted(WORDS)
    assert stored == {
        "metadata": letters, "serialization": "2026-01-01T12:00:00Z", "default": "B",
        "config": letters, "type": letters, "fields": letters,
    }  # fmt: skip
    row = OddRow(WORDS, ELSEWHERE, B(), {"b": {"type": "set"}, "a": {"type": "union"}})
    storage = storage_of(OddRow)
    assert storage.encode_checked(row) == (
        b'{"metadata":["a","b","c","d","e","f","g","h"],"serialization":"2026-01-01T12:00:00Z",'
        b'"config":{"@":"B","x":0},"by_type":{"a":{"type":"union"},"b":{"type":"set"}}}'
    )
    assert storage.decode(storage.encode(row)) == row
    naive = AT.replace(tzinfo=None)
    for wrong in (OddRow(WORDS, naive, B(), {}), OddRow(frozenset({1}), AT, B(), {})):  # type: ignore[arg-type]
        with pytest.raises(ContractError):
            storage.encode_checked(wrong)
