from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from leftfold import ConfigurationError, ContractError
from leftfold.model.rows import RowCodec
from tests.domains.values import Everything, Label, everything, texts

codec: RowCodec[Everything] = RowCodec(Everything, ("text", "money", "at", "size"), "test")


def stored(row: Any, with_: RowCodec[Any]) -> dict[bytes, bytes]:
    return dict(zip(with_.columns, with_.encode(row), strict=True))


@given(everything)
def test_a_row_comes_back_equal(row: Everything) -> None:
    assert codec.decode(stored(row, codec)) == row


@given(everything)
def test_every_field_is_written_every_time(row: Everything) -> None:
    assert len(codec.encode(row)) == len(codec.columns) == 18


@given(everything, st.randoms(use_true_random=False))
def test_equal_rows_give_equal_bytes_and_one_digest(row: Everything, chance: random.Random) -> None:
    tags = list(row.tags)
    chance.shuffle(tags)
    same = replace(row, tags=frozenset(tags), at=row.at.astimezone(timezone(timedelta(hours=2))))
    assert codec.encode(same) == codec.encode(row)
    again = codec.decode(stored(row, codec))
    assert codec.encode(again) == codec.encode(row)
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
