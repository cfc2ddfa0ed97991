"""Rows as they are stored, and the order of indexed values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from leftfold import ConfigurationError, ContractError
from leftfold.model.rows import RowCodec, ordered
from tests.domains.values import Color, Everything, Label, Size, everything, texts, times

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


@dataclass
class Thawed:
    x: int


class Soft(BaseModel):
    x: int


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
