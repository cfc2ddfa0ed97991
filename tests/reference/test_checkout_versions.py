"""Receipts of every version read as receipts of today."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from events.baskets import BasketCheckedOut, Line
from leftfold import ContractError, Event
from leftfold.ports.codec import MessageCodec

V1 = b"""{"basket_id": "b", "at": "2016-12-24T18:00:00Z", "household_id": "h-7", "store_id": "s-1", "lines": [
    {"product_id": "milk", "quantity": 2, "sales_value": "3.98", "retail_disc": "0.40", "coupon_disc": "1.00"},
    {"product_id": "bread", "quantity": 1, "sales_value": "2.02", "retail_disc": "0.00", "coupon_disc": "0.00"}]}"""

TODAY = BasketCheckedOut(
    basket_id="b",
    at=datetime(2016, 12, 24, 18, tzinfo=UTC),
    household_id="h-7",
    store_id="s-1",
    lines=(
        Line(
            product_id="milk",
            quantity=2,
            sales_value=Decimal("3.98"),
            retail_disc=Decimal("0.40"),
            coupon_disc=Decimal("1.00"),
        ),
        Line(product_id="bread", quantity=1, sales_value=Decimal("2.02"), retail_disc=Decimal("0.00")),
    ),
    total=Decimal("6.00"),
)

codec: MessageCodec[Event] = MessageCodec([BasketCheckedOut])


def test_a_receipt_of_version_1_gets_the_total_of_its_lines() -> None:
    assert codec.decode(b"baskets.BasketCheckedOut.v1", V1) == TODAY


def test_a_receipt_of_today_reads_as_it_was_written() -> None:
    assert codec.decode(b"baskets.BasketCheckedOut.v2", codec.encode(TODAY)) == TODAY


def test_a_receipt_of_tomorrow_is_not_guessed_at() -> None:
    with pytest.raises(ContractError, match="version 3"):
        codec.decode(b"baskets.BasketCheckedOut.v3", codec.encode(TODAY))


def test_a_broken_receipt_of_version_1_is_refused() -> None:
    with pytest.raises(ContractError):
        codec.decode(b"baskets.BasketCheckedOut.v1", V1.replace(b'"lines"', b'"rows"'))
