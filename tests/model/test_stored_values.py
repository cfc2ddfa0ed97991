"""Values and rows as stored bytes, the order of indexed values, and numbers and times in headers of any origin."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Optional, Union
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from leftfold import ConfigurationError, ContractError
from leftfold.model.row_codec import RowCodec, ordered
from leftfold.model.state_codec import Storage, number_in, time_at, time_in, version_in
from tests.domains.values import (
    Circle,
    Color,
    Everything,
    Group,
    Label,
    Size,
    Square,
    circles,
    everything,
    shapes,
    squares,
    texts,
    times,
)

storage: Storage[Everything] = Storage(Everything, "test")
shape: Storage[Any] = Storage(Circle | Square | Group, "test")


@given(everything, st.randoms(use_true_random=False))
def test_what_is_stored_comes_back_equal_and_equal_values_give_equal_bytes(
    value: Everything, chance: random.Random
) -> None:
    def shuffled(items: Any) -> list[Any]:
        return chance.sample(list(items), len(items))

    same = replace(
        value,
        tags=frozenset(shuffled(value.tags)),
        days=frozenset(shuffled(value.days)),
        prices=dict(shuffled(value.prices.items())),
        by_name=dict(shuffled(value.by_name.items())),
    )
    assert storage.decode(storage.encode(value)) == value
    assert storage.encode(same) == storage.encode(value) == storage.encode(storage.decode(storage.encode(value)))


@given(shapes, circles | squares)
def test_a_union_remembers_which_class_it_holds_and_ignores_unknown_fields(
    value: Circle | Square | Group, flat: Circle | Square
) -> None:
    again = shape.decode(shape.encode(value))
    assert type(again) is type(value)
    assert again == value
    assert shape.decode(shape.encode(flat)[:-1] + b',"later":[1,{"x":null}]}') == flat


def test_a_union_is_tagged_by_class_name() -> None:
    assert shape.encode(Group((Circle(Decimal(1)),))) == b'{"@":"Group","shapes":[{"@":"Circle","radius":"1"}]}'


@given(times)
def test_one_moment_has_one_text_whatever_its_zone(at: datetime) -> None:
    @dataclass(frozen=True)
    class Moment:
        at: tuple[datetime, ...]

    moments: Storage[Moment] = Storage(tuple[datetime, ...], "test")
    elsewhere = at.astimezone(timezone(timedelta(hours=3)))
    assert moments.encode((at,)) == moments.encode((elsewhere,))  # type: ignore[arg-type]


def test_a_decimal_keeps_its_places() -> None:
    money: Storage[Decimal] = Storage(Decimal, "test")
    assert money.encode(Decimal("12.50")) == b'"12.50"'
    assert str(money.decode(b'"12.50"')) == "12.50"


@dataclass
class Thawed:
    x: int


class Rank(Enum):
    FIRST = 1


@dataclass(frozen=True)
class Changing:
    items: list[int]


@dataclass(frozen=True)
class Deep:
    inner: tuple[Changing, ...]


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (float, "test: float cannot be stored.*Decimal"),
        (list, "test: list cannot be stored.*tuple"),
        (list[int], "tuple"),
        (set[int], "frozenset"),
        (Any, "cannot be stored"),
        (object, "test: object cannot be stored"),
        (dict, "cannot be stored"),
        (bytes, "bytes cannot be stored"),
        (Thawed, "Thawed is not frozen; write @dataclass"),
        (Changing, r"test: Changing.items: .*tuple\["),
        (Deep, "test: Deep.inner: Changing.items: "),
        (int | str, "a union may be X . None or of dataclasses"),
        (Circle | int, "a union may be X . None or of dataclasses"),
        (Mapping[str, float], "float cannot be stored"),
        (Sequence[int], "cannot be stored"),
        (Mapping[tuple[str, int], int], "test: the keys of .* would not be read as they are written; use keys of str"),
        (Mapping[Rank, int], "the keys of .* would not be read"),
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_with_place_and_remedy(type_: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Storage(type_, "test")


@pytest.mark.parametrize("type_", [Optional[int], Union[Circle, Square], Circle | None, tuple[()], frozenset[int]])  # noqa: UP007, UP045
def test_these_can_be_stored(type_: Any) -> None:
    Storage(type_, "test")


@pytest.mark.parametrize(
    ("type_", "key"),
    [(str, "a"), (int, -1), (bool, True), (Decimal, Decimal("1.50")), (date, date(2026, 1, 1)), (UUID, UUID(int=3)),
     (datetime, datetime(2026, 1, 1, tzinfo=UTC)), (timedelta, timedelta(seconds=3)), (Size, Size.SMALL),
     (Literal["x"], "x")],
)  # fmt: skip
def test_these_are_keys_of_mappings(type_: Any, key: Any) -> None:
    storage: Storage[Any] = Storage(Mapping[type_, int], "test")
    assert storage.decode(storage.encode_checked({key: 1})) == {key: 1}


def test_two_classes_of_one_name_in_a_union_are_refused() -> None:
    namesake: Any = dataclass(frozen=True)(type("Circle", (), {"__annotations__": {"x": int}, "__module__": __name__}))
    with pytest.raises(ConfigurationError, match="two classes of one union have one name"):
        Storage(Union[Circle, namesake], "test")  # noqa: UP007


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b'{"@":"Circle"}', b'{"@":"Triangle","radius":"1"}', b'{"radius":"1"}', b"\xff",
        b'{"@":"Circle","radius":"NaN"}', b'{"@":"Circle","radius":NaN}', b'{"@":"Group","shapes":' * 5000,
        b"[" * 100_000, b'{"@":"Circle","radius":"' + b"9" * 100_000 + b'x"}',
    ],
    ids=lambda data: repr(data[:30]),
)  # fmt: skip
def test_bytes_that_are_no_such_value_break_the_contract(data: bytes) -> None:
    with pytest.raises(ContractError, match="test: stored bytes are no such value"):
        shape.decode(data)


def test_a_naive_time_is_refused_when_read() -> None:
    moment: Storage[datetime] = Storage(datetime, "test")
    assert moment.decode(b'"2026-01-01T00:00:00Z"') == datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(ContractError, match="timezone"):
        moment.decode(b'"2026-01-01T00:00:00"')


@given(st.one_of(st.text(), st.binary()))
@example("²")
@example("9" * 5000)
@example(str(1 << 63))
def test_any_text_is_a_number_from_0_or_none(text: str | bytes) -> None:
    number = number_in(text)
    assert number is None or 0 <= number < 1 << 63


@given(st.integers(0, (1 << 63) - 1))
def test_every_offset_is_a_number(number: int) -> None:
    assert number_in(str(number)) == number_in(b"%d" % number) == number
    assert version_in(b"visits.Paid.v%d" % number) == ("visits.Paid", number)


@given(st.binary(max_size=40) | st.datetimes().map(lambda at: at.isoformat().encode()))
def test_any_text_is_a_time_with_its_zone_or_none(text: bytes) -> None:
    found = time_in(text)
    assert found is None or found.tzinfo is UTC


@pytest.mark.parametrize(
    "text", [b"", b"yesterday", b"2026-01-01", b"2026-01-01T00:00:00", b"0001-01-01T00:00:00+23:59", b"\xff"]
)
def test_a_text_without_date_time_and_zone_is_no_time(text: bytes) -> None:
    assert time_in(text) is None


def test_a_time_is_in_utc_however_it_was_written() -> None:
    assert time_in(b"2026-01-01T01:00:00+01:00") == datetime(2026, 1, 1, tzinfo=UTC)
    assert time_in(b"2026-01-01T00:00:00Z") == datetime(2026, 1, 1, tzinfo=UTC)
    assert time_at(1_767_225_600_000) == datetime(2026, 1, 1, tzinfo=UTC)


@given(st.integers())
def test_any_number_of_milliseconds_is_a_time(milliseconds: int) -> None:
    assert datetime(1970, 1, 1, tzinfo=UTC) <= time_at(milliseconds) <= datetime.max.replace(tzinfo=UTC)


codec: RowCodec[Everything] = RowCodec(Everything, ("text", "money", "at", "size"), "test")


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stored(row: Any, with_: RowCodec[Any]) -> dict[bytes, bytes]:
    return dict(zip(with_.columns, with_.encode(row), strict=True))


@given(everything, st.randoms(use_true_random=False))
def test_a_row_comes_back_equal_and_equal_rows_give_equal_bytes_and_one_digest(
    row: Everything, chance: random.Random
) -> None:
    again, tags = codec.decode(stored(row, codec)), list(row.tags)
    chance.shuffle(tags)
    same = replace(row, tags=frozenset(tags), at=row.at.astimezone(timezone(timedelta(hours=2))))
    assert again == row
    assert len(codec.encode(row)) == len(codec.columns) == 18, "every field is written every time"
    assert codec.encode(same) == codec.encode(again) == codec.encode(row)
    assert codec.digest("k", codec.encode(again)) == codec.digest("k", codec.encode(row))


def test_plain_values_are_text_that_other_languages_read() -> None:
    @dataclass(frozen=True)
    class Row:
        text: str
        money: Decimal
        truth: bool
        at: datetime
        nothing: int | None
        pair: tuple[int, str]

    rows: RowCodec[Row] = RowCodec(Row, (), "test")
    row = Row("é\r\n", Decimal("12.50"), True, datetime(2026, 1, 1, tzinfo=UTC), None, (1, "x"))
    assert rows.encode(row) == ("é\r\n".encode(), b"12.50", b"true", b"2026-01-01T00:00:00+00:00", b"null", b'[1,"x"]')


@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_a_digest_tells_fields_apart_wherever_they_are_cut(one: tuple[str, str], other: tuple[str, str]) -> None:
    a, b = [tuple(text.encode() for text in pair) for pair in (one, other)]
    assert (codec.digest("k", a) == codec.digest("k", b)) == (one == other)
    assert codec.digest("k", a) != codec.digest("j", a)


def test_unknown_stored_fields_are_ignored_and_missing_ones_break_the_contract() -> None:
    labels: RowCodec[Label] = RowCodec(Label, (), "test")
    fields = {b"text": b"x", b"size": b'"s"', b"@version": b"3", b"later": b"?"}
    assert labels.decode(fields).text == "x"
    with pytest.raises(ContractError, match="test: the stored row lacks field .*size.*; rebuild the view"):
        labels.decode({b"text": b"x"})


@pytest.mark.parametrize("value", [b"NaN?", b"", b"1e", b"\xff"])
def test_an_unreadable_stored_field_breaks_the_contract(value: bytes) -> None:
    @dataclass(frozen=True)
    class Row:
        money: Decimal

    with pytest.raises(ContractError, match="test: the stored row is unreadable"):
        RowCodec(Row, (), "test").decode({b"money": value})


def test_a_naive_time_cannot_be_written() -> None:
    @dataclass(frozen=True)
    class Row:
        at: datetime

    with pytest.raises(ContractError, match="no time zone"):
        RowCodec(Row, (), "test").encode(Row(datetime(2026, 1, 1)))  # noqa: DTZ001


class Soft(BaseModel):
    x: int


@dataclass(frozen=True)
class Bare:
    pass


class Firm(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int


@pytest.mark.parametrize(
    ("row", "indexes", "message"),
    [
        (int, (), "test: row=.*must be a frozen dataclass"),
        (Thawed, (), "test: row: Thawed is not frozen"),
        (Soft, (), "test: row: Soft is not frozen"),
        (Firm, ("y",), "test: index 'y' is no field of Firm"),
        (Bare, (), "test: row=Bare has no fields, .*declare at least one"),
        (Everything, ("shapes",), "shapes"),
    ],
)
def test_a_row_that_cannot_be_stored_is_refused(row: Any, indexes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RowCodec(row, indexes, "test")


numbers = st.integers(-(10**40), 10**40) | st.decimals(allow_nan=False, allow_infinity=False)


def agree(one: Any, other: Any, before: Callable[[Any, Any], bool] = lambda a, b: a < b) -> bool:
    """Whether the texts of two values, as bytes, stand to each other as the values do."""
    a, b = ordered(one).encode(), ordered(other).encode()
    return ((a < b), (a == b)) == (before(one, other), one == other)


@given(numbers, numbers)
@example(10**29 - 1, 2 * 10**28)
@example(Decimal("-1.2"), Decimal("-1.23"))
@example(Decimal("1.0"), 1)
@example(Decimal("-0"), 0)
@example(Decimal("1E-40"), 0)
@example(10**30, 10**30 + 1)
def test_numbers_sort_as_text_whatever_their_kind(one: int | Decimal, other: int | Decimal) -> None:
    assert agree(one, other)


@given(times, times, texts, texts, st.dates(), st.dates())
@example(NOW, NOW.astimezone(timezone(timedelta(hours=9))), "", "\0", NOW.date(), NOW.date())
def test_times_of_any_zone_texts_and_days_sort_as_text(
    one: datetime, other: datetime, text: str, other_text: str, day: date, other_day: date
) -> None:
    assert agree(one, other)
    assert agree(text, other_text)
    assert agree(day, other_day)


def test_nothing_sorts_before_everything() -> None:
    assert all(ordered(None) < ordered(value) for value in ("", 0, -(10**50), Decimal("-1e9"), False, date.min))


def test_truth_values_enums_and_ids_sort_too() -> None:
    assert ordered(False) < ordered(True)
    assert ordered(Color.RED) < ordered(Color.BLUE)
    assert ordered(Size.SMALL) == ordered("s")
    assert ordered(UUID(int=1)) < ordered(UUID(int=2))


@pytest.mark.parametrize("value", [[], (1,), object(), 1.5, Decimal("NaN"), Decimal("Infinity"), b"x"])
def test_what_has_no_order_is_refused(value: object) -> None:
    with pytest.raises(ContractError, match="cannot be indexed"):
        ordered(value)


ID = UUID(int=1)


@dataclass(frozen=True)
class Typed:
    day: date = date(2026, 1, 1)
    amount: Decimal = Decimal(1)
    count: int = 1
    is_good: bool = True
    id: UUID = ID


@pytest.mark.parametrize(
    "values",
    [
        {"day": datetime(2026, 1, 1, tzinfo=UTC)},
        {"day": "2026-01-01"},
        {"amount": 1.5},
        {"amount": True},
        {"amount": "1.5"},
        {"count": 2.7},
        {"count": Decimal(2)},
        {"count": True},
        {"is_good": "no"},
        {"id": "x"},
    ],
)
def test_a_row_with_a_value_of_another_type_is_not_stored(values: dict[str, Any]) -> None:
    """It would be read as another value, or not at all."""
    codec = RowCodec(Typed, (), "test")
    codec.encode(Typed())
    with pytest.raises(ContractError, match=f"and the field holds {Typed.__annotations__[next(iter(values))]}"):
        codec.encode(Typed(**values))
