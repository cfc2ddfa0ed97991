"""What would not be read as it is written: a definition refuses such types, and an encoding such values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasPath, Field, PrivateAttr, field_serializer, field_validator

from leftfold import (
    App,
    Command,
    ConfigurationError,
    ContractError,
    Decider,
    DecisionFailed,
    Event,
    FoldView,
    memory,
)
from leftfold.model.rows import RowCodec
from leftfold.model.state_encoding import Storage
from tests.model.test_stored_models import A, Firm, Whole


class ByName(Firm, validate_by_name=True):
    x: int = Field(0, alias="ex")


class ByOlderName(Firm, populate_by_name=True):
    x: int = Field(0, validation_alias="ex")


class ByAlias(Firm, serialize_by_alias=True):
    x: int = Field(0, alias="ex")


@pytest.mark.parametrize(
    ("type_", "stored"), [(ByName, b'[{"x":1}]'), (ByOlderName, b'[{"x":1}]'), (ByAlias, b'[{"ex":1}]')], ids=str
)
def test_an_alias_that_is_read_as_it_is_written_may_be_used(type_: Any, stored: bytes) -> None:
    storage, value = Storage[Any](tuple[type_, ...], "test"), (type_(ex=1),)
    assert storage.encode_checked(value) == stored
    assert storage.decode(stored) == value


class Aliased(Firm):
    x: int = Field(0, alias="ex")


class Exchanged(Firm, validate_by_name=True):
    x: int = Field(0, alias="y")
    y: int = Field(0, alias="x")


class OneWay(Firm, serialize_by_alias=True):
    x: int = Field(0, serialization_alias="ex")


class Deep(Firm):
    x: int = Field(0, validation_alias=AliasPath("ex", 0))


class Hidden(Firm):
    x: int = Field(0, exclude=True)


class Loose(Firm, extra="allow"):
    x: int = 0


class Private(Firm):
    x: int = 0
    _y: int = PrivateAttr(0)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._y = 1


@dataclass(frozen=True)
class AliasedDataclass:
    x: Annotated[int, Field(alias="ex")] = 0


class Outer(Firm):
    inner: tuple[Aliased, ...] = ()


class Roots(Firm):
    one: Whole | A


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (Aliased, "Aliased.x is not read by the name .*; set validate_by_name=True"),
        (Outer, "Aliased.x is not read by the name that it is written by"),
        (AliasedDataclass, "AliasedDataclass.x is not read by the name that it is written by"),
        (Exchanged, "Exchanged.x is not read by the name that it is written by"),
        (OneWay, "OneWay.x is not read by the name .*; give it one alias="),
        (Deep, "Deep.x is not read by the name that it is written by"),
        (Hidden, "Hidden.x is excluded from what is written.*; remove exclude="),
        (Loose, "Loose has fields without a type; set extra='ignore'"),
        (Private, "Private is read without its __init__.*; set _y in model_post_init"),
        (Roots, "Roots.one: a RootModel has no place for the tag"),
    ],
    ids=str,
)
def test_a_model_that_would_not_be_read_as_it_is_written_is_refused(type_: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"test: .*{message}"):
        Storage(tuple[type_, ...], "test")


@pytest.mark.parametrize("row", [Aliased, Exchanged, Deep, ByAlias])
def test_a_row_that_its_class_does_not_take_by_name_is_refused(row: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"test: row: {row.__name__}.x is not read .*validate_by_name"):
        RowCodec(row, (), "test")


@pytest.mark.parametrize("row", [ByName, Hidden, OneWay, Loose, Private], ids=str)
def test_the_fields_of_a_row_itself_are_stored_by_name(row: Any) -> None:
    codec, value = RowCodec(row, (), "test"), row()
    assert codec.columns == (b"x",)
    assert codec.decode(dict(zip(codec.columns, codec.encode(value), strict=True))) == value


class Happened(Event, category="things", key="id"):
    id: str


class Do(Command, category="things", key="id"):
    id: str


def test_a_view_and_a_decider_name_the_class_and_the_field_when_they_are_declared() -> None:
    def fold(row: Outer | None, event: Happened) -> Outer:
        return row or Outer()

    def decide(command: Do, state: Outer) -> list[Happened]:
        return []

    with pytest.raises(ConfigurationError, match=r"view v: row Outer.inner: Aliased.x is not read"):
        FoldView("v", events=Happened, row=Outer, evolve=fold)
    with pytest.raises(ConfigurationError, match=r"decider things: state: Aliased.x is not read"):
        Decider("things", commands=Do, events=Happened, state=Outer, initial_state=Outer(), decide=decide, evolve=fold)


class Kind(Enum):
    CARD = "card"
    CHECK = "check"


class Planet(Enum):
    MARS = (0.6, 3.4)


class Rate(Enum):
    LOW = Decimal("1.5")


class Day(Enum):
    FIRST = date(2026, 1, 1)


class Raw(Enum):
    X = b"x"


class Right(Flag):
    READ = 1
    WRITE = 2


class Size(StrEnum):
    SMALL = "s"


class Rank(IntEnum):
    FIRST = 1


class Number(Enum):
    ONE = 1


class Found(Enum):
    PAIR = (1, 2)

    @classmethod
    def _missing_(cls, value: object) -> Found | None:
        return cls.PAIR if value == [1, 2] else None


class Parsed(Firm):
    planet: Planet

    @field_validator("planet", mode="before")
    @classmethod
    def named(cls, planet: object) -> object:
        return Planet[planet] if isinstance(planet, str) else planet

    @field_serializer("planet")
    def name(self, planet: Planet) -> str:
        return planet.name


class WithDay(Firm):
    day: Day | None = None


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Literal[Kind.CARD], "Kind.CARD"), (Literal["a", Kind.CARD], "Kind.CARD"), (Literal[b"x"], "b'x'"),
        (Planet, "Planet.MARS"), (Rate, "Rate.LOW"), (Day, "Day.FIRST"), (Raw, "Raw.X"), (WithDay, "Day.FIRST"),
    ],
    ids=str,
)  # fmt: skip
def test_an_enum_or_a_literal_that_json_cannot_give_back_is_refused(type_: Any, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^test: .*{value}.* would not be read as it is written; use"):
        Storage(type_ | None, "test")
    with pytest.raises(ConfigurationError, match=rf"^test: .*{value}.* would not be read as it is written; use"):
        Storage(tuple[type_, ...], "test")


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Kind, Kind.CHECK), (Size, Size.SMALL), (Rank, Rank.FIRST), (Number, Number.ONE),
        (Right, Right.READ | Right.WRITE), (Found, Found.PAIR), (Literal["a", 1, True], True),
        (Literal[Size.SMALL, Rank.FIRST], Rank.FIRST), (Parsed, Parsed(planet=Planet.MARS)),
    ],
    ids=str,
)  # fmt: skip
def test_an_enum_or_a_literal_that_is_read_as_it_is_written_is_stored(type_: Any, value: object) -> None:
    storage = Storage[Any](type_ | None, "test")
    assert storage.decode(storage.encode_checked(value)) == value


def test_an_enum_is_stored_as_text_where_it_is_a_field_of_a_row() -> None:
    @dataclass(frozen=True)
    class Row:
        planet: Planet
        day: Day

    codec, row = RowCodec(Row, (), "test"), Row(Planet.MARS, Day.FIRST)
    assert codec.decode(dict(zip(codec.columns, codec.encode(row), strict=True))) == row


@dataclass(frozen=True)
class Base:
    a: int = 0


@dataclass(frozen=True)
class Derived(Base):
    b: int = 0


class DerivedA(A):
    y: int = 0


NO_A = A()


@dataclass(frozen=True)
class Bases:
    base: Base = Base()
    a: A = NO_A
    several: tuple[Base, ...] = ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Bases(base=Derived()), r"Derived\(.*\) is Derived, and the field holds an instance of Base itself"),
        (Bases(several=(Base(), Derived())), "is Derived, and the field holds an instance of Base itself"),
        (Bases(a=DerivedA()), "is DerivedA, and the field holds an instance of A itself"),
    ],
    ids=str,
)
def test_a_value_of_a_subclass_is_refused_since_it_would_be_read_as_its_base(value: Bases, words: str) -> None:
    storage, rows = Storage[Bases](Bases, "test"), RowCodec(Bases, (), "test")
    assert storage.decode(storage.encode(value)) == Bases(several=(Base(), Base())[: len(value.several)])
    for encode in (storage.encode_checked, rows.encode):
        encode(Bases(several=(Base(),)))
        with pytest.raises(ContractError, match=words):
            encode(value)
    assert isinstance(storage.fitting(value), ContractError)


def test_a_row_of_a_subclass_is_refused_since_it_would_be_read_as_its_base() -> None:
    with pytest.raises(ContractError, match="is Derived, and the view holds Base itself"):
        RowCodec(Base, (), "test").encode(Derived())


def test_a_subclass_that_is_declared_later_is_refused_too() -> None:
    @dataclass(frozen=True)
    class First:
        a: int = 0

    storage = Storage[Any](First, "test")
    assert storage.encode_checked(First()) == b'{"a":0}'

    class Second(First):
        pass

    with pytest.raises(ContractError, match="is Second, and the field holds an instance of First itself"):
        storage.encode_checked(Second())
    assert storage.encode_checked(First()) == b'{"a":0}'


@dataclass(frozen=True)
class Node:
    n: int = 0
    next: Node | None = None


def test_a_state_that_is_too_deep_to_be_read_again_fails_the_decision() -> None:
    """There are 255 levels that pydantic writes, and 200 that it reads."""
    things = Decider(
        "things",
        commands=Do,
        events=Happened,
        state=Node,
        initial_state=Node(),
        decide=lambda command, state: [Happened(id=command.id)] * (150 if state.next is None else 1),
        evolve=lambda state, event: Node(state.n + 1, state),
    )
    with memory(App("a", deciders=[things]), now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send(Do(id="x"))
        for _ in range(49):
            world.client.send(Do(id="x"))
        for _ in range(2):
            with pytest.raises(DecisionFailed, match="recursion limit exceeded"):
                world.client.send(Do(id="x"))
        assert len(world.stream("things", "x")) == 199
