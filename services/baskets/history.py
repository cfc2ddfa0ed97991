"""The year of receipts as the commands that led to them, for loading it through the rules like any other work."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import pandas as pd

from services.baskets.commands import AddItem, ApplyCoupon, BasketCommand, CheckOut, OpenBasket
from services.baskets.receipts import WEEKS, dollars, receipts

__all__ = ["history"]

# A few thousand prices make up the whole year.
_dollars = cache(dollars)


class _ReceiptLine(NamedTuple):
    """A line as plain Python numbers; money in cents, `at` in seconds since 1970."""

    basket_id: int
    at: int
    household_id: int
    store_id: int
    product_id: int
    quantity: int
    sales_value: int
    retail_disc: int
    coupon_disc: int
    coupon_match_disc: int


def history(weeks: Collection[int] = WEEKS) -> Iterator[tuple[str, BasketCommand]]:
    """Every command of these weeks in time order, each after the id that makes sending it twice harmless.

    A receipt says when it was printed and no more, so all commands of a basket carry that time.
    """
    for _, week in receipts(weeks).groupby("week"):
        for basket_id, lines in groupby(_lines(week), attrgetter("basket_id")):
            for n, command in enumerate(_commands(list(lines))):
                yield f"b-{basket_id}-{n}", command


def _lines(week: pd.DataFrame) -> Iterator[_ReceiptLine]:
    week = week.assign(at=week["at"].astype("int64") // 10**9)
    return map(_ReceiptLine._make, zip(*(week[name].tolist() for name in _ReceiptLine._fields), strict=True))


def _commands(lines: Sequence[_ReceiptLine]) -> Iterator[BasketCommand]:
    first = lines[0]
    basket_id, at = str(first.basket_id), datetime.fromtimestamp(first.at, UTC)
    yield OpenBasket(basket_id=basket_id, at=at, household_id=str(first.household_id), store_id=str(first.store_id))
    for line in lines:
        yield AddItem(
            basket_id=basket_id,
            at=at,
            product_id=str(line.product_id),
            quantity=line.quantity,
            sales_value=_dollars(line.sales_value),
            retail_disc=_dollars(line.retail_disc),
        )
        if line.coupon_disc:
            yield ApplyCoupon(
                basket_id=basket_id,
                at=at,
                product_id=str(line.product_id),
                coupon_disc=_dollars(line.coupon_disc),
                coupon_match_disc=_dollars(line.coupon_match_disc),
            )
    yield CheckOut(basket_id=basket_id, at=at)
