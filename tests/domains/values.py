"""Values of every storable kind, and a type that holds them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict


class Color(Enum):
    RED = 1
    BLUE = 2


class Size(StrEnum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Circle:
    radius: Decimal


@dataclass(frozen=True)
class Square:
    side: Decimal
    color: Color


@dataclass(frozen=True)
class Group:
    shapes: tuple[Circle | Square | Group, ...]


class Label(BaseModel):
    model_config = ConfigDict(frozen=True)
    text: str
    size: Size | None = None


@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    truth: bool
    money: Decimal
    at: datetime
    day: date
    id: UUID
    color: Color
    size: Size | None
    pair: tuple[int, str]
    numbers: tuple[int, ...]
    tags: frozenset[str]
    days: frozenset[date]
    prices: Mapping[str, Decimal]
    shapes: tuple[Circle | Square | Group, ...]
    shape: Circle | Square | None
    by_name: Mapping[str, Circle | Square]
    label: Label


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
times = st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=zones)  # noqa: DTZ001
circles = st.builds(Circle, decimals)
squares = st.builds(Square, decimals, st.sampled_from(Color))
shapes = st.recursive(
    circles | squares, lambda inner: st.builds(Group, st.lists(inner, max_size=3).map(tuple)), max_leaves=5
)
everything = st.builds(
    Everything,
    text=texts,
    number=st.integers(-(10**30), 10**30),
    truth=st.booleans(),
    money=decimals,
    at=times,
    day=st.dates(),
    id=st.uuids(),
    color=st.sampled_from(Color),
    size=st.none() | st.sampled_from(Size),
    pair=st.tuples(st.integers(), texts),
    numbers=st.lists(st.integers(), max_size=3).map(tuple),
    tags=st.frozensets(texts, max_size=4),
    days=st.frozensets(st.dates(), max_size=3),
    prices=st.dictionaries(texts, decimals, max_size=4),
    shapes=st.lists(shapes, max_size=3).map(tuple),
    shape=st.none() | circles | squares,
    by_name=st.dictionaries(texts, circles | squares, max_size=3),
    label=st.builds(Label, text=texts, size=st.none() | st.sampled_from(Size)),
)
