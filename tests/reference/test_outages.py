"""Services are down, in any order and for any time: every checkout comes to its end, and then all agree."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as supposing
from hypothesis import strategies as st

from events.baskets import BasketPaid, BasketReopened
from events.inventory import StockReleased, StockReserved
from events.payments import Method, PaymentVoided
from leftfold import App, OutcomeUnknown, World, memory
from leftfold.ports.protocols import RawRecord
from services.checkout.process import PATIENCE
from services.loyalty.commands import EarnPoints
from services.payments.commands import Clear
from tests.reference import careless
from tests.reference.chain import AT, chain, of, shop, stock
from tests.reference.sums import disagreements
from tests.reference.test_sums_agree import (
    SERVICES,
    Again,
    Buy,
    Cleared,
    Filled,
    Happening,
    Reopened,
    Voided,
    Wait,
    commands,
    reported,
)

HOUR = timedelta(hours=1)
PRODUCTS = ("milk", "bread", "eggs")
STOPPABLE = (*SERVICES, "checkout")


class Shuffled(deque[RawRecord]):
    """Records that are taken in any order, but for those of one partition."""

    chance: random.Random

    def popleft(self) -> RawRecord:
        heads: dict[tuple[str, int], int] = {}
        for number, record in enumerate(self):
            heads.setdefault((record.topic, record.partition), number)
        number = self.chance.choice(list(heads.values()))
        record = self[number]
        del self[number]
        return record


@dataclass(frozen=True)
class Turn:
    """A service goes down, or comes up if it was down."""

    service: str


METHODS = st.sampled_from([Method.CARD, Method.CARD, Method.CHECK, Method.AT_REGISTER])
BASKETS = st.integers(0, 5)
ACTS = st.one_of(
    st.builds(
        Buy,
        st.lists(st.sampled_from(PRODUCTS), min_size=1, unique=True).map(tuple),
        st.sampled_from(["0.40", "9.99", "180.00"]),
        METHODS,
        st.sampled_from(["", "0.30"]),
        st.sampled_from([0, 0, 5, 300]),
    ),
    st.builds(Again, BASKETS, METHODS),
    st.builds(Cleared, BASKETS),
    st.builds(Reopened, BASKETS),
    st.builds(Voided, BASKETS),
    st.builds(Filled, st.sampled_from(PRODUCTS), st.integers(1, 6)),
)
STEPS = st.one_of(
    st.lists(ACTS, min_size=1, max_size=3),
    st.lists(ACTS, min_size=1, max_size=3),
    st.builds(Turn, st.sampled_from(STOPPABLE)),
    st.builds(Wait, st.sampled_from([1, 14, 16, 60])),
)
"""Acts in one list happen in the same moment."""


def begin(app: App, chance: random.Random | None = None) -> World:
    """The chain with some stock, and a household that has a few points."""
    with memory(app, now=AT) as world:
        if chance is not None:
            world._flow._waiting = Shuffled()
            world._flow._waiting.chance = chance
        world.client.send_many(list(stock(*PRODUCTS, units=6)))
        world.client.send(EarnPoints(household_id="h", at=AT, checkout_id="before", amount=Decimal("50.00")))
        return world


def happen(world: World, step: list[Happening] | Turn | Wait, number: int, down: set[str]) -> None:
    """One more step; what asks a service that is down gets no answer."""
    match step:
        case Turn(service):
            (world.start if service in down else world.stop)(service)
            down ^= {service}
        case Wait(minutes):
            world.advance(timedelta(minutes=minutes))
        case acts:
            world.client.send_many([command for act in acts for command in commands(act, number, world)])


def wrong(world: World) -> list[str]:
    """What does not agree, but for the points that the household had before."""
    events = reported(world)
    events["loyalty"] = [event for event in events["loyalty"] if getattr(event, "checkout_id", "") != "before"]
    return disagreements(events)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@supposing(st.lists(STEPS, min_size=3, max_size=16), st.permutations(STOPPABLE), st.randoms(use_true_random=False))
def test_every_checkout_ends_and_all_services_agree_whichever_of_them_was_down(
    steps: Sequence[Any], back: Sequence[str], chance: random.Random
) -> None:
    world, down = begin(chain, chance), set[str]()
    for number, step in enumerate(steps):
        happen(world, step, number, down)
    for service in back:
        world.start(service)
        world.advance(timedelta(minutes=chance.choice([0, 5, 20])))
    world.advance(2 * PATIENCE)
    assert wrong(world) == []
    assert world.timers.list("checkout") == {}
    names = (*STOPPABLE, "replenishment", "supplier")
    assert [world.dead(name) for name in names if world.dead(name)] == []


def ends(world: World) -> list[object]:
    """How checkouts have ended."""
    return of(world, "baskets", BasketPaid, BasketReopened)


@pytest.mark.parametrize("down", ["inventory", "loyalty"])
def test_a_basket_is_open_again_at_the_deadline_though_a_service_is_still_down(down: str) -> None:
    world = begin(chain)
    world.stop(down)
    world.client.send_many(list(shop("b", "milk", "bread", points=5)))
    world.advance(PATIENCE - timedelta(seconds=1))
    assert ends(world) == []
    world.advance(HOUR)
    (reopened,) = ends(world)
    assert isinstance(reopened, BasketReopened)
    assert (reopened.reason, reopened.at) == ("not paid in time", AT + PATIENCE)
    world.start(down)
    assert len(of(world, "inventory", StockReserved)) == len(of(world, "inventory", StockReleased)) == 2
    assert wrong(world) == []
    assert world.dead("checkout") == []


def test_a_checkout_ends_when_payments_come_back_since_they_alone_know_of_the_money() -> None:
    world = begin(chain)
    world.stop("payments")
    world.client.send_many(list(shop("b", "milk", points=5)))
    world.advance(HOUR)
    assert ends(world) == []
    world.start("payments")
    (reopened,) = ends(world)
    assert isinstance(reopened, BasketReopened)
    assert len(of(world, "payments", PaymentVoided)) == 1
    assert wrong(world) == []


def test_what_is_paid_is_shipped_however_late() -> None:
    world = begin(chain)
    world.client.send_many(list(shop("b", "milk", method=Method.CHECK)))
    world.stop("inventory")
    world.stop("loyalty")
    world.client.send(Clear(payment_id="b/1", at=world.now))
    world.advance(HOUR)
    assert [type(end) for end in ends(world)] == [BasketPaid]
    world.start("loyalty")
    world.start("inventory")
    assert wrong(world) == []


@pytest.mark.parametrize("down", ["inventory", "loyalty", "payments", ""])
def test_an_operator_ends_a_checkout_before_its_deadline_by_firing_it(down: str) -> None:
    world = begin(chain)
    if down:
        world.stop(down)
    world.client.send_many(list(shop("b", "milk", points=5, method=Method.CHECK)))
    world.timers.fire("checkout", "b/1", "deadline", reason="the household left")
    if down:
        world.start(down)
    (reopened,) = ends(world)
    assert isinstance(reopened, BasketReopened)
    assert world.now == AT, "no time has passed"
    assert wrong(world) == []
    assert world.dead("checkout") == []


def test_without_a_deadline_a_basket_waits_as_long_as_the_service_is_down() -> None:
    world = begin(careless.patient)
    world.stop("inventory")
    world.client.send_many(list(shop("b", "milk")))
    world.advance(24 * HOUR)
    assert ends(world) == []


def test_a_checkout_that_forgets_what_is_under_way_leaves_it_reserved() -> None:
    world = begin(careless.hasty)
    world.stop("inventory")
    world.client.send_many(list(shop("b", "milk")))
    world.advance(HOUR)
    world.start("inventory")
    assert any("s/milk is still reserved" in text for text in wrong(world))


def test_a_service_that_is_stopped_gives_no_answer_and_decides_when_it_is_back() -> None:
    world = begin(chain)
    world.stop("inventory")
    (delivery,) = stock("milk", units=3)
    with pytest.raises(OutcomeUnknown, match="send it again with id='again'"):
        world.client.send(delivery, id="again")
    before = len(of(world, "inventory"))
    world.start("inventory")
    assert len(of(world, "inventory")) == before + 1
    world.client.send(delivery, id="again")
    assert len(of(world, "inventory")) == before + 1
