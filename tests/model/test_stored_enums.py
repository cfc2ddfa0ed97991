"""Enums and Literals in state and rows: what JSON cannot give back is refused, unless code of users reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, field_serializer, field_validator, model_validator
from pydantic_core import core_schema

from leftfold import ConfigurationError, ContractError
from leftfold.model.row_codec import RowCodec
from leftfold.model.state_codec import Storage
from tests.model.test_stored_models import Firm


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


def _without_addresses(value: object) -> str:
    """A name that is the same in every process."""
    return re.sub(r" at 0x\w+", "", str(value))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Literal[Kind.CARD], "Kind.CARD"), (Literal["a", Kind.CARD], "Kind.CARD"), (Literal[b"x"], "b'x'"),
        (Planet, "Planet.MARS"), (Rate, "Rate.LOW"), (Day, "Day.FIRST"), (Raw, "Raw.X"), (WithDay, "Day.FIRST"),
    ],
    ids=_without_addresses,
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
    ids=_without_addresses,
)  # fmt: skip
def test_an_enum_or_a_literal_that_is_read_as_it_is_written_is_stored(type_: Any, value: object) -> None:
    storage = Storage[Any](type_ | None, "test")
    assert storage.decode(storage.encode_checked(value)) == value


def read_planet(value: object) -> object:
    return Planet(tuple(value)) if isinstance(value, list) else value


class Moon(Enum):
    IO = ("io", 1)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        own = core_schema.no_info_plain_validator_function(lambda value: cls(tuple(value)))
        return core_schema.union_schema([handler(source), own])


class Star(Enum):
    SUN = ("sun", 1)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        own = core_schema.no_info_after_validator_function(lambda value: cls(tuple(value)), core_schema.any_schema())
        return core_schema.json_or_python_schema(json_schema=own, python_schema=handler(source))


class Upgraded(Firm):
    planet: Planet | None = None

    @model_validator(mode="before")
    @classmethod
    def upgraded(cls, data: object) -> object:
        return data


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Moon, Moon.IO), (Star, Star.SUN), (Upgraded, Upgraded()),
        (Annotated[Planet, BeforeValidator(read_planet)], Planet.MARS),
    ],
    ids=_without_addresses,
)  # fmt: skip
def test_an_enum_that_code_of_users_reads_is_stored(type_: Any, value: object) -> None:
    storage = Storage[Any](tuple[type_, ...], "test")
    assert storage.decode(storage.encode_checked((value,))) == (value,)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Upgraded, Upgraded(planet=Planet.MARS)),
        (Annotated[Planet, BeforeValidator(lambda value: value)], Planet.MARS),
        (Annotated[Literal[Kind.CARD], BeforeValidator(lambda value: value)], Kind.CARD),
    ],
    ids=_without_addresses,
)
def test_a_member_that_code_of_users_does_not_read_is_refused_when_it_is_stored(type_: Any, value: object) -> None:
    storage = Storage[Any](tuple[type_, ...], "test")
    with pytest.raises(ContractError, match=r"^test: .* would not be read as it is written"):
        storage.encode_checked((value,))
    assert isinstance(storage.fitting((value,)), ContractError)


def test_the_members_of_an_enum_are_looked_at_once_and_not_each_for_each() -> None:
    looks: list[Enum] = []

    class Country(Enum):
        @property
        def value(self) -> str:
            looks.append(self)
            return str(self._value_)

    class Known(Country):
        vars().update({f"C{number}": f"code-{number}" for number in range(300)})

    Storage(Known | None, "test")
    assert len(looks) < 100 * len(Known)


def test_an_enum_is_stored_as_text_where_it_is_a_field_of_a_row() -> None:
    @dataclass(frozen=True)
    class Row:
        planet: Planet
        day: Day

    codec, row = RowCodec(Row, (), "test"), Row(Planet.MARS, Day.FIRST)
    assert codec.decode(dict(zip(codec.columns, codec.encode(row), strict=True))) == row
