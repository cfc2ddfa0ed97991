"""Classes of rows: what cannot be stored and read is refused with the view, and what the code cannot read says why."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum, Flag, IntFlag, StrEnum
from typing import Any, Generic, TypeVar

import pydantic.dataclasses
import pytest
from pydantic import BaseModel, create_model

from leftfold import ConfigurationError, ContractError
from leftfold.compatibility.fold_hash import fold_hash
from leftfold.model.row_codec import RowCodec, ordered
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
