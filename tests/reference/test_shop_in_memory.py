"""A Sunday of shopping through the whole loop, without servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from leftfold import Receipt, World, memory
from projections.basket_summary import basket_summary
from projections.household_spend import Segment, household_spend, in_segment
from projections.product_sales import best_sellers
from projections.store_totals import takings
from services.baskets.app import app
from services.baskets.audit import audit
from services.baskets.commands import AddItem, BasketClosed, CheckOut, OpenBasket
from services.baskets.history import history
from services.baskets.truth import truth

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
