"""Whatever is bought, declined, sold out or late: views over services come to what all of them say.

That all services agree whatever happens is shown in test_outages.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from events.baskets import BasketPaid, BasketReopened
from events.payments import Method, PaymentCaptured, PaymentVoided
from leftfold import App, DomainError, Event, World, memory
from leftfold.testing import check_interleavings, fold
from projections.household_360 import household_360
from projections.household_spend import household_spend
from projections.order_journey import What, order_journey
from projections.product_sales import product_sales
from projections.store_totals import store_totals
from services.baskets.commands import CheckOut, ReopenBasket
from services.checkout.process import PATIENCE
from services.payments.commands import Clear, Void
from tests.reference import careless
from tests.reference.chain import AT, chain, of, shop, stock
from tests.reference.sums import disagreements

PRODUCTS = ("milk", "bread", "eggs", "beer")
SERVICES = ("baskets", "payments", "loyalty", "inventory")


@dataclass(frozen=True)
class Buy:
    """A basket is filled and checked out."""

    products: tuple[str, ...]
    price: str
    method: Method
    coupon: str
    points: int


@dataclass(frozen=True)
class Again:
    """A basket that was reopened is checked out once more."""

    basket: int
    method: Method


@dataclass(frozen=True)
class Cleared:
    """The bank clears a check of some basket."""

    basket: int


@dataclass(frozen=True)
class Reopened:
    """An operator reopens a basket."""

    basket: int


@dataclass(frozen=True)
class Voided:
    """An operator makes the payments of a basket void, perhaps before there are any."""

    basket: int


@dataclass(frozen=True)
class Wait:
    """Time goes by."""

    minutes: int


@dataclass(frozen=True)
class Filled:
    """A supplier comes."""

    product: str
    units: int


Happening = Buy | Again | Cleared | Reopened | Voided | Wait | Filled


def commands(happening: Happening, number: int, world: World) -> Iterator[Any]:
    """What a happening comes to, if it is asked of the services at this time."""
    now = world.now
    match happening:
        case Buy(products, price, method, coupon, points):
            points = 0 if method is Method.AT_REGISTER else points
            yield from shop(f"b{number}", *products, price=price, coupon=coupon, method=method, points=points, at=now)
        case Again(basket, method):
            yield CheckOut(basket_id=f"b{basket}", at=now, method=method)
        case Cleared(basket):
            yield from (Clear(payment_id=f"b{basket}/{attempt}", at=now) for attempt in (1, 2))
        case Reopened(basket):
            yield from (
                ReopenBasket(basket_id=f"b{basket}", at=now, attempt=attempt, reason="manual") for attempt in (1, 2)
            )
        case Voided(basket):
            yield from (
                Void(payment_id=f"b{basket}/{attempt}", at=now, household_id="h", reason="manual") for attempt in (1, 2)
            )
        case Filled(product, units):
            yield from stock(product, units=units, at=now)
        case Wait():
            pass


def live(app: App, happenings: Sequence[Happening]) -> World:
    """A world in which all that happened, and in which every check is cleared or void by now."""
    with memory(app, now=AT) as world:
        world.client.send_many(list(stock(*PRODUCTS, units=5)))
        for number, happening in enumerate(happenings):
            for command in commands(happening, number, world):
                try:
                    world.client.send(command)
                except DomainError:
                    continue
            if isinstance(happening, Wait):
                world.advance(timedelta(minutes=happening.minutes))
        world.advance(2 * PATIENCE)
    return world


def reported(world: World) -> dict[str, list[Event]]:
    """Everything written, by category."""
    return {category: of(world, category) for category in SERVICES}


def everything(seed: int, count: int = 60) -> list[Happening]:
    """A repeatable history in which everything happens."""
    chance, found = random.Random(seed), list[Happening]()
    for number in range(count):
        match chance.randrange(10):
            case 0:
                found.append(Wait(chance.choice([1, 10, 20])))
            case 1:
                found.append(Filled(chance.choice(PRODUCTS), 4))
            case 2:
                found.append(Cleared(chance.randrange(number + 1)))
            case 3:
                found.append(Again(chance.randrange(number + 1), chance.choice(list(Method))))
            case 4:
                found.append(Reopened(chance.randrange(number + 1)))
            case 5:
                found.append(Voided(chance.randrange(number + 3)))
            case _:
                products = tuple(chance.sample(PRODUCTS, chance.randrange(1, 4)))
                price, coupon = chance.choice(["0.40", "9.99", "70.00", "180.00"]), chance.choice(["", "0.30"])
                found.append(Buy(products, price, chance.choice(list(Method)), coupon, chance.choice([0, 0, 5])))
    return found


def test_a_checkout_that_gives_no_stock_back_is_found_out() -> None:
    world = live(careless.chain, everything(1))
    assert any("is still reserved" in text for text in disagreements(reported(world)))


@pytest.mark.parametrize("app", [careless.credulous, careless.surprised], ids=["credulous", "surprised"])
def test_a_checkout_that_does_not_reckon_with_what_an_operator_does_is_found_out(app: App) -> None:
    assert any("is still reserved" in text for text in disagreements(reported(live(app, everything(2)))))


@pytest.fixture(scope="module")
def busy() -> World:
    """A world in which everything has happened."""
    world = live(chain, everything(1))
    kinds = {type(event) for event in (*of(world, "baskets"), *of(world, "payments"))}
    assert kinds >= {BasketPaid, BasketReopened, PaymentCaptured, PaymentVoided}
    assert disagreements(reported(world)) == []
    return world


def streams(world: World) -> list[list[Event]]:
    """Every stream of every service."""
    found: dict[tuple[str, str], list[Event]] = {}
    for category, events in reported(world).items():
        for event in events:
            found.setdefault((category, getattr(event, type(event).__leftfold__.key)), []).append(event)
    return list(found.values())


@pytest.mark.parametrize("view", [order_journey, household_360], ids=repr)
def test_views_over_services_do_not_depend_on_the_order_in_which_services_are_read(view: Any, busy: World) -> None:
    check_interleavings(view, *streams(busy), tries=10)
    assert dict(busy.views[view].items()) == fold(view, *(event for stream in streams(busy) for event in stream))


def test_views_of_baskets_come_to_what_was_not_undone(busy: World) -> None:
    gone = {(one.basket_id, one.attempt) for one in of(busy, "baskets", BasketReopened)}
    kept = [
        event
        for event in of(busy, "baskets")
        if not isinstance(event, BasketReopened)
        and (getattr(event, "basket_id", ""), getattr(event, "attempt", 0)) not in gone
    ]
    assert gone
    assert {key: row for key, row in busy.views[store_totals].items() if row.lines} == fold(store_totals, *kept)
    assert {key: row for key, row in busy.views[product_sales].items() if row.lines} == fold(product_sales, *kept)
    spend, expected_spend = busy.views[household_spend].get("h"), fold(household_spend, *kept)["h"]
    assert spend is not None
    assert (spend.baskets, spend.total, spend.saved) == (
        expected_spend.baskets,
        expected_spend.total,
        expected_spend.saved,
    )


def test_a_journey_tells_how_a_basket_ended(busy: World) -> None:
    rows = dict(busy.views[order_journey].items())
    for basket in of(busy, "baskets", BasketPaid):
        steps = {step.what: step for step in rows[basket.basket_id].steps if step.attempt == basket.attempt}
        assert rows[basket.basket_id].last.what is What.PAID
        assert steps[What.CAPTURED].amount == steps[What.PAID].amount == basket.amount
        assert steps[What.RESERVED].amount == steps[What.SHIPPED].amount
    for basket in of(busy, "baskets", BasketReopened):
        steps = {step.what: step for step in rows[basket.basket_id].steps if step.attempt == basket.attempt}
        assert steps[What.REOPENED].why == basket.reason
        assert steps.get(What.RESERVED, 0) == 0 or steps[What.RELEASED].times == steps[What.RESERVED].times
    household = busy.views[household_360].get("h")
    assert household is not None
    assert (
        household.captured
        == household.paid_amount
        == sum((p.amount for p in of(busy, "baskets", BasketPaid)), Decimal(0))
    )
