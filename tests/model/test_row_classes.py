"""Classes of rows: what cannot be stored and read is refused with the view, and what the code cannot read says why."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntFlag, StrEnum
from fractions import Fraction
from typing import Any, Generic, TypeVar

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, create_model

from leftfold import ConfigurationError, ContractError
from leftfold.compatibility.fold_hash import fold_hash
from leftfold.model.row_codec import RowCodec, ordered, value_of_text
from leftfold.model.state_codec import Storage
from tests.domains.values import Color, Size


class Rights(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    ONE = 1


class Alike(Enum):
    NUMBER = 1
    TEXT = "1"


class Renamed(Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  # another name of one member


class Letter(StrEnum):
    SMALL = "s"


class Paired(Enum):
    SMALL = "s"
    LARGE = (2, "L")


class Confused(Enum):
    """Zero is written in an index as the text is."""

    NUMBER = 0
    TEXT = "1"


@dataclass(frozen=True)
class Doubled:
    one: int
    two: int = field(init=False, default=0)


@dataclass(frozen=True)
class Passing:
    one: int
    other: InitVar[int] = 0


@pydantic.dataclasses.dataclass(frozen=True)
class PassingModel:
    one: int
    other: InitVar[int] = 0


def row_of(type_: Any) -> Any:
    return create_model("Row", __config__={"frozen": True}, value=(type_, ...))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Doubled, "row Doubled.two has init=False, .*; make it a property"),
        (Passing, "row Passing.other is an InitVar, .*; make it a field"),
        (PassingModel, "row PassingModel.other is an InitVar, .*; make it a field"),
        (row_of(Rights), "row Row.value: Rights is a Flag, .*; use int or an Enum"),
        (row_of(Bits), "row Row.value: Bits is a Flag, .*; use int or an Enum"),
        (row_of(Alike), "row Row.value: Alike.NUMBER and Alike.TEXT are both written as '1'; give them values with"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_row_that_could_not_be_read_again_is_refused(row: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"test: {message}"):
        RowCodec(row, (), "test")


@pytest.mark.parametrize("type_", [Paired, Confused])
def test_an_index_on_an_enum_with_a_value_that_has_no_order_is_refused(type_: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"test: Row.value cannot be indexed; .* or of an Enum of such values"):
        RowCodec(row_of(type_), ("value",), "test")
    assert RowCodec(row_of(type_), (), "test").indexes == ()


@pytest.mark.parametrize("type_", [Color, Size, Letter, Renamed, Letter | None])
def test_an_index_on_an_enum_of_ordered_values_is_allowed(type_: Any) -> None:
    assert RowCodec(row_of(type_), ("value",), "test").indexes == ("value",)


def test_a_time_that_is_none_in_utc_has_no_place_in_an_index() -> None:
    with pytest.raises(ContractError, match="is no time in UTC"):
        ordered(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))))


def test_two_names_of_one_member_may_be_stored() -> None:
    row = row_of(Renamed)
    codec: RowCodec[Any] = RowCodec(row, (), "test")
    assert codec.encode(row(value=Renamed.CRIMSON)) == (b"1",)
    assert codec.decode({b"value": b"1"}) == row(value=Renamed.RED)


@pytest.mark.parametrize("value", [Size.SMALL, Letter.SMALL, "s", 1, None])
def test_a_member_of_another_enum_is_not_stored(value: Any) -> None:
    row = row_of(Size if value is not Size.SMALL else Color)
    with pytest.raises(ContractError, match=f"is {type(value).__name__}, and the field holds (Size|Color)"):
        RowCodec(row, (), "test").encode(row.model_construct(value=value))


def test_a_stored_value_that_is_no_member_is_named() -> None:
    codec: RowCodec[Any] = RowCodec(row_of(Color), (), "test")
    with pytest.raises(
        ContractError, match="the stored row is unreadable: b'3' is no value of Color; rebuild the view"
    ):
        codec.decode({b"value": b"3"})


def test_a_class_that_does_not_take_its_fields_is_an_unreadable_row() -> None:
    @dataclass(frozen=True, init=False)
    class Row:
        one: int

        def __init__(self, uno: int) -> None:
            object.__setattr__(self, "one", uno)

    with pytest.raises(ContractError, match="the stored row is unreadable: .*unexpected keyword argument 'one'"):
        RowCodec(Row, (), "test").decode({b"one": b"1"})


T = TypeVar("T")


class Box(BaseModel, Generic[T], frozen=True):
    content: T


class Crate(BaseModel, Generic[T], frozen=True):
    first: T
    box: Box[T]
    others: tuple[T, ...] = ()


class Crates(Crate[int], frozen=True):
    """A class with the arguments of its base."""


@dataclass(frozen=True)
class Lorry:
    crate: Crate[int]


CRATE = Crate[int](first=1, box=Box[int](content=2), others=(3,))


@pytest.mark.parametrize(
    "row", [CRATE, Crates(first=1, box=Box[int](content=2)), Lorry(CRATE)], ids=lambda row: type(row).__name__
)
def test_a_generic_model_with_its_arguments_is_a_row_or_part_of_one(row: Any) -> None:
    codec: RowCodec[Any] = RowCodec(type(row), () if isinstance(row, Lorry) else ("first",), "test")
    assert codec.decode(dict(zip(codec.columns, codec.encode(row), strict=True))) == row
    assert fold_hash(Crate[int], Box[int]) == fold_hash(Crate, Box)


class Rate(Enum):
    HALF = Decimal("0.5")
    ALWAYS = True
    NEW_YEAR = date(2026, 1, 1)
    SMALL = "s"


def test_a_member_of_an_enum_is_known_by_the_text_of_its_value_in_json() -> None:
    assert [value_of_text(Rate | None, text) for text in ("0.5", "true", "2026-01-01", "s")] == list(Rate)
    assert (value_of_text(Color, "1"), value_of_text(Size, "s"), value_of_text(int, "1")) == (Color.RED, Size.SMALL, 1)
    for text in ("HALF", "0.50", ""):
        with pytest.raises(ValueError, match="Input should be"):
            value_of_text(Rate, text)


@dataclass(frozen=True)
class Card:
    ref: str


@dataclass(frozen=True)
class Cash:
    ref: str


@dataclass(frozen=True)
class Bill:
    how: Card | Cash
    tags: frozenset[str]
    at: datetime


def test_rows_and_state_are_shown_with_the_class_in_a_union_as_they_are_stored() -> None:
    letters, at = [*"abcdefghij"], datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    shown = {"how": {"@": "Cash", "ref": "x"}, "tags": letters, "at": "2026-01-01T00:00:00Z"}
    bill = Bill(Cash("x"), frozenset(letters), at)
    rows: RowCodec[Bill] = RowCodec(Bill, (), "test")
    assert (rows.shown(bill), rows.shown(None), Storage[Bill](Bill, "test").shown(bill)) == (shown, None, shown)
    wrong: Any = {"one": Fraction(1, 2)}
    assert Storage[Any](Card | Cash, "test").shown(wrong) == {"one": "1/2"}, "what evolve may have made by mistake"


@dataclass(frozen=True)
class Sold:
    isbn: str
    copies: int = 0


def test_indexes_are_a_list_and_not_one_text() -> None:
    with pytest.raises(ConfigurationError, match=r"view v: indexes='isbn' is one field; write indexes=\['isbn'\]"):
        RowCodec(Sold, "isbn", "view v")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (Sold(isbn=1), r"Sold\.isbn: 1 is int, and the field holds str"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (Sold("i", copies="1"), r"Sold\.copies: '1' is str, and the field holds int"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_value_that_cannot_be_stored_is_named_with_its_field(row: Sold, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        RowCodec(Sold, (), "view v").encode(row)
