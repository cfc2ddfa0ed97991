"""The year of receipts becomes the same commands every time, and none of them is lost."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from itertools import pairwise

import pytest

from services.baskets.commands import AddItem, ApplyCoupon, BasketCommand, CheckOut, OpenBasket
from services.baskets.history import history
from services.baskets.receipts import WEEKS, receipts
from services.baskets.truth import Sums, truth


@pytest.fixture(scope="module")
def week_one() -> list[tuple[str, BasketCommand]]:
    """The commands of the first week, a single Sunday."""
    return list(history(weeks=[1]))


def test_commands_have_ids_of_their_own_come_in_time_order_and_are_the_same_each_time(
    week_one: list[tuple[str, BasketCommand]],
) -> None:
    assert list(history(weeks=[1])) == week_one
    assert len({id_ for id_, _ in week_one}) == len(week_one)
    assert all(before.at <= after.at for (_, before), (_, after) in pairwise(week_one))
    id_, command = week_one[0]
    assert id_ == "b-31198570044-0"
    assert isinstance(command, OpenBasket)
    assert command.at.isoformat() == "2017-01-01T11:53:26+00:00"
    assert (command.household_id, command.store_id) == ("900", "330")


def test_every_basket_is_opened_first_and_checked_out_last(week_one: list[tuple[str, BasketCommand]]) -> None:
    streams: dict[str, list[BasketCommand]] = {}
    for _, command in week_one:
        streams.setdefault(command.basket_id, []).append(command)
    assert len(streams) == 382
    for first, *between, last in streams.values():
        assert isinstance(first, OpenBasket)
        assert all(isinstance(command, AddItem | ApplyCoupon) for command in between)
        assert isinstance(last, CheckOut)


def test_the_weeks_make_a_command_of_every_basket_line_and_coupon_of_the_year() -> None:
    year = receipts()
    assert sorted(set(year["week"])) == list(WEEKS)
    assert (year["coupon_disc"] > 0).sum() == 21_889
    for week in (1, 53):
        lines = year[year["week"] == week]
        counts = Counter(type(command) for _, command in history(weeks=[week]))
        baskets, coupons = lines["basket_id"].nunique(), (lines["coupon_disc"] > 0).sum()
        assert counts == {OpenBasket: baskets, AddItem: len(lines), ApplyCoupon: coupons, CheckOut: baskets}


def test_the_source_adds_up_to_its_known_totals() -> None:
    year = truth()
    assert year.chain == Sums(
        baskets=155_848,
        lines=1_469_307,
        quantity=152_923_108,
        sales_value=Decimal("4596039.58"),
        retail_disc=Decimal("791650.64"),
        coupon_disc=Decimal("26359.90"),
        coupon_match_disc=Decimal("4542.65"),
    )
    assert (len(year.households), len(year.stores), len(year.products)) == (2_469, 457, 68_509)
