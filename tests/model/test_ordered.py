from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leftfold import ContractError
from leftfold.model.rows import ordered
from tests.domains.values import Color, Size, texts, times

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


@given(times, times)
def test_times_sort_as_text_whatever_their_zone(one: datetime, other: datetime) -> None:
    assert agree(one, other)


def test_one_moment_in_two_zones_is_one_text() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert ordered(at) == ordered(at.astimezone(timezone(timedelta(hours=9))))


@given(texts, texts)
@example("", "\0")
def test_texts_sort_as_text(one: str, other: str) -> None:
    assert agree(one, other)


@given(st.dates(), st.dates())
def test_days_sort_as_text(one: date, other: date) -> None:
    assert agree(one, other)


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
