"""Worlds in which somebody takes workers away, or fires and cancels timers, and what comes behind an end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leftfold import App, Finished, OutcomeUnknown, World, memory
from leftfold.engine.processing.process_reactor import Reactor
from leftfold.errors import ConfigurationError
from leftfold.ports.codec import header
from tests.domains.trade import (
    PATIENCE,
    Checkout,
    Confirmed,
    Drop,
    Dropped,
    Input,
    Pay,
    Place,
    Placed,
    Release,
    Reserve,
    Reserved,
    app,
    checkout_with,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATE = Dropped(order="o", why="not paid in time")


@pytest.fixture
def world() -> Iterator[World]:
    """An order that waits to be paid."""
    with memory(app, now=NOW) as world:
        world.client.send(Place(order="o", product="p", at=NOW))
        yield world


def seen(world: World, category: str) -> list[object]:
    return [recorded.event for recorded in world.events(category)]


def test_a_timer_fires_by_hand_once_and_says_who_wanted_it(world: World) -> None:
    world.advance(timedelta(minutes=5))
    world.timers.fire("checkout", "o", "patience", reason="the customer left", by="anna")
    assert seen(world, "orders").count(LATE) == 1
    assert world.timers.list() == {}
    world.advance(2 * PATIENCE)
    assert seen(world, "orders").count(LATE) == 1
    (order,) = [r for records in world.log.of("checkout.commands") for r in records if b"anna" in (r.value or b"")]
    assert header(order.headers, "ce_type") == b"leftfold.due.v1"
    (dropped,) = [recorded for recorded in world.events("orders") if recorded.event == LATE]
    assert dropped.time == NOW + timedelta(minutes=5)


def test_a_timer_that_is_cancelled_by_hand_never_fires(world: World) -> None:
    world.timers.cancel("checkout", "o", "patience")
    world.advance(2 * PATIENCE)
    assert LATE not in seen(world, "orders")
    world.client.send(Pay(order="o"))
    assert Confirmed(order="o") in seen(world, "orders")


def test_timers_are_listed_by_process_and_key(world: World) -> None:
    world.client.send(Place(order="other", product="q", at=NOW))
    assert set(world.timers.list("checkout")) == {("checkout", "o", "patience"), ("checkout", "other", "patience")}
    assert world.timers.list(key="o") == {("checkout", "o", "patience"): NOW + PATIENCE}
    assert world.timers.list("elsewhere") == {}
    for act in (world.timers.fire, world.timers.cancel):
        with pytest.raises(
            ConfigurationError, match=r"no timer 'late' is set in checkout 'o'; there are: .*o patience"
        ):
            act("checkout", "o", "late")


def test_who_is_stopped_takes_nothing_until_it_is_started(world: World) -> None:
    world.stop("payments")
    with pytest.raises(OutcomeUnknown):
        world.client.send(Pay(order="o"), id="pay")
    world.stop("checkout")
    world.advance(2 * PATIENCE)
    world.start("payments")
    assert LATE not in seen(world, "orders"), "whose timer it is, is away"
    assert len(seen(world, "payments")) == 1
    assert Confirmed(order="o") not in seen(world, "orders")
    world.start("checkout")
    assert Confirmed(order="o") in seen(world, "orders"), "it was there before anybody said that the timer is due"
    assert LATE not in seen(world, "orders")
    with pytest.raises(ConfigurationError, match=r"no decider or process 'paiments'; there are: .*payments"):
        world.stop("paiments")


def ends_at_once(given: Input, state: Checkout) -> Sequence[Any]:
    """Sends what may be refused, and ends."""
    if isinstance(given, Placed):
        return [Reserve(product=given.product, order=given.order), Finished()]
    return [] if isinstance(given, Reserved) else [Drop(order=given.command.order, why=str(given.error))]  # type: ignore[union-attr]


def sell_out(process: Any) -> World:
    """Three orders of what there are two of."""
    with memory(App("trade", partitions=4, deciders=app.deciders, processes=[process]), now=NOW) as world:
        for order in "abc":
            world.client.send(Place(order=order, product="p", at=NOW))
        return world


def test_a_refusal_behind_the_end_is_heard_by_who_listens_and_dead_where_nobody_does() -> None:
    world = sell_out(checkout_with(react=ends_at_once))
    assert Dropped(order="c", why="no p left") in seen(world, "orders")
    assert world.dead("checkout") == []
    deaf = checkout_with(react=ends_at_once, inputs=Placed | Reserved, sends=Reserve | Release | Drop)
    (letter,) = sell_out(deaf).dead("checkout")
    assert b"has no input Rejected[Reserve]" in header(letter.headers, "dead_reason")


def test_events_behind_the_end_reach_nobody_and_an_instance_that_forgot_its_end_would_take_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Input] = []

    def noting(given: Input, state: Checkout) -> Sequence[Any]:
        taken.append(given)
        return ends_at_once(given, state)

    sell_out(checkout_with(react=noting))
    assert not any(isinstance(given, Reserved) for given in taken)
    applied = Reactor._applied

    def forgetful(self: Reactor, instance: Any, given: Any, effects: Any) -> Any:
        return applied(self, instance, given, [(e, s) for e, s in effects if not isinstance(e, Finished)])

    monkeypatch.setattr(Reactor, "_applied", forgetful)
    sell_out(checkout_with(react=noting))
    assert any(isinstance(given, Reserved) for given in taken)
