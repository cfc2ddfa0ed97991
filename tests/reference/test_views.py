"""What the views make of baskets, and a Sunday of shopping through the whole loop without servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any

import pytest

from events.baskets import BasketCheckedOut, BasketEvent, BasketOpened, CouponApplied, ItemAdded, Line
from leftfold import Receipt, View, World, memory
from leftfold.testing import check_interleavings, fold
from projections.basket_summary import BasketSummary, basket_summary
from projections.household_spend import HouseholdSpend, Segment, household_spend, in_segment
from projections.product_sales import ProductSales, best_sellers, product_sales
from projections.store_totals import StoreTotals, store_totals, takings
from services.baskets.app import app
from services.baskets.audit import audit
from services.baskets.commands import AddItem, BasketClosed, CheckOut, OpenBasket
from services.baskets.domain import baskets
from services.baskets.history import history
from services.baskets.truth import truth

NEW_YEAR, JUNE = datetime(2017, 1, 1, 12, tzinfo=UTC), datetime(2017, 6, 1, 12, tzinfo=UTC)


def line(product_id: str, sales_value: str, retail_disc: str = "0.00", coupon_disc: str = "0.00") -> Line:
    """A line of two units."""
    return Line(
        product_id=product_id,
        quantity=2,
        sales_value=Decimal(sales_value),
        retail_disc=Decimal(retail_disc),
        coupon_disc=Decimal(coupon_disc),
    )


def receipt(basket_id: str, *lines: Line, at: datetime = NEW_YEAR) -> BasketCheckedOut:
    """A receipt of household h-7 in store s-1."""
    total = sum((line.sales_value for line in lines), Decimal("0.00"))
    return BasketCheckedOut(basket_id=basket_id, at=at, household_id="h-7", store_id="s-1", lines=lines, total=total)


milk = line("milk", "3.98", retail_disc="0.40", coupon_disc="1.00")
bread = line("bread", "2.02")


def test_a_basket_summary_follows_its_basket() -> None:
    events: tuple[BasketEvent, ...] = (
        BasketOpened(basket_id="b", at=NEW_YEAR, household_id="h-7", store_id="s-1"),
        ItemAdded(
            basket_id="b",
            at=NEW_YEAR,
            product_id="milk",
            quantity=2,
            sales_value=Decimal("3.98"),
            retail_disc=Decimal("0.40"),
        ),
        CouponApplied(
            basket_id="b",
            at=NEW_YEAR,
            product_id="milk",
            coupon_disc=Decimal("1.00"),
            coupon_match_disc=Decimal("0.00"),
        ),
    )
    summary = BasketSummary(
        basket_id="b",
        opened_at=NEW_YEAR,
        household_id="h-7",
        store_id="s-1",
        lines=1,
        total=Decimal("3.98"),
        coupons=Decimal("1.00"),
    )
    assert fold(basket_summary, *events) == {"b": summary}
    assert summary.due == Decimal("2.98")
    assert fold(basket_summary, *events, receipt("b", milk, at=JUNE))["b"].checked_out_at == JUNE


def test_a_household_adds_up_its_receipts() -> None:
    rows = fold(household_spend, receipt("b1", milk, bread, at=JUNE), receipt("b2", bread))
    assert rows == {
        "h-7": HouseholdSpend(
            household_id="h-7",
            baskets=2,
            total=Decimal("8.02"),
            saved=Decimal("1.40"),
            first_visit=NEW_YEAR,
            last_visit=JUNE,
            segment=Segment.OCCASIONAL,
        )
    }


@pytest.mark.parametrize(
    ("total", "segment"),
    [
        ("499.99", Segment.OCCASIONAL),
        ("500.00", Segment.REGULAR),
        ("2499.99", Segment.REGULAR),
        ("2500.00", Segment.DEVOTED),
    ],
)
def test_spending_makes_the_segment(total: str, segment: Segment) -> None:
    assert fold(household_spend, receipt("b", line("patio set", total)))["h-7"].segment is segment


def test_one_receipt_sells_every_product_on_it() -> None:
    rows = fold(product_sales, receipt("b1", milk, bread), receipt("b2", milk))
    assert rows == {
        "milk": ProductSales("milk", 2, 4, Decimal("7.96"), Decimal("0.80"), Decimal("2.00")),
        "bread": ProductSales("bread", 1, 2, Decimal("2.02")),
    }


def test_a_store_adds_up_its_receipts() -> None:
    rows = fold(store_totals, receipt("b1", milk, bread), receipt("b2", bread))
    assert rows == {"s-1": StoreTotals("s-1", 2, 3, Decimal("8.02"), Decimal("0.40"), Decimal("1.00"))}


@pytest.mark.parametrize("view", [household_spend, product_sales, store_totals], ids=repr)
def test_the_order_of_baskets_does_not_matter(view: View[Any, Any]) -> None:
    streams: dict[str, list[BasketEvent]] = {}
    state = baskets.initial_state
    for _, command in islice(history(weeks=[1]), 1500):
        stream = streams.setdefault(command.basket_id, [])
        state = state if stream else baskets.initial_state
        events = baskets.decide(command, state)
        state = baskets.fold(state, events)
        stream.extend(events)
    check_interleavings(view, *streams.values(), tries=3)


SUNDAY = [1]
MONDAY = datetime(2017, 1, 2, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def sunday() -> Iterator[World]:
    """The baskets service after the first Sunday of the year."""
    with memory(app, now=MONDAY) as world:
        ids, commands = zip(*history(SUNDAY), strict=True)
        answers = world.client.send_many(commands, ids=ids)
        assert all(isinstance(answer, Receipt) for answer in answers)
        yield world


def test_the_views_come_to_the_truth_to_the_cent(sunday: World) -> None:
    assert audit(sunday.views, truth(SUNDAY)) == []
    assert takings(sunday.views) == Decimal("10477.50")


def test_an_audit_names_what_is_wrong(sunday: World) -> None:
    differences = audit(sunday.views, truth([2]))
    assert any(text.startswith("household_spend ") for text in differences)
    assert any(text.startswith("store_totals ") for text in differences)
    assert any(text.startswith("product_sales ") for text in differences)


def test_loading_the_same_day_again_writes_nothing(sunday: World) -> None:
    before = len(sunday.events("baskets"))
    ids, commands = zip(*history(SUNDAY), strict=True)
    sunday.client.send_many(commands, ids=ids)
    assert len(sunday.events("baskets")) == before == 4_512


def test_fuel_sells_best(sunday: World) -> None:
    best, second = best_sellers(sunday.views, 2)
    assert (best.product_id, best.sales_value) == ("6534178", Decimal("253.78"))
    assert second.sales_value < best.sales_value


def test_no_household_is_devoted_after_one_day(sunday: World) -> None:
    assert in_segment(sunday.views, Segment.DEVOTED) == {}
    assert len(in_segment(sunday.views, Segment.OCCASIONAL)) == 315


def test_a_checked_out_basket_stays_as_it_is(sunday: World) -> None:
    late = AddItem(basket_id="31198570044", at=MONDAY, product_id="1095275", quantity=1, sales_value=Decimal("0.50"))
    with pytest.raises(BasketClosed, match="basket 31198570044 is already checked out"):
        sunday.client.send(late)


def test_a_shopper_sees_a_purchase_at_once() -> None:
    with memory(app, now=MONDAY) as world:
        for command in (
            OpenBasket(basket_id="b", at=MONDAY, household_id="h-7", store_id="s-1"),
            AddItem(basket_id="b", at=MONDAY, product_id="milk", quantity=2, sales_value=Decimal("3.98")),
        ):
            world.client.send(command)
        paid = world.client.send(CheckOut(basket_id="b", at=MONDAY))

        summary = world.views[basket_summary].get("b", after=paid.position)
        assert summary is not None
        assert summary.checked_out_at == MONDAY
        spend = world.views[household_spend].get("h-7", after=paid.position)
        assert spend is not None
        assert spend.total == Decimal("3.98")
