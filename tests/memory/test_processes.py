from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from leftfold import App, Cancel, Finished, Rejected, Timer, World, memory
from leftfold.engine.processing import log_time
from leftfold.testing import given
from tests.domains.trade import (
    PATIENCE,
    Confirm,
    Confirmed,
    Drop,
    Dropped,
    OutOfStock,
    Paid,
    Pay,
    Place,
    Placed,
    Release,
    Released,
    Reserve,
    Reserved,
    app,
    checkout,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACED = Placed(order="o", product="p", at=NOW)
RESERVED = Reserved(product="p", order="o")
PLACE = Place(order="o", product="p", at=NOW)
RESERVE, DROP = Reserve(product="p", order="o"), Drop(order="o", why="not paid in time")


@pytest.fixture
def world() -> World:
    with memory(app, now=NOW) as world:
        return world


def seen(world: World, category: str) -> list[object]:
    return [recorded.event for recorded in world.events(category)]


def test_a_policy_reads_as_a_sentence() -> None:
    timer = Timer(name="patience", at=NOW + PATIENCE, command=DROP)
    given(checkout).when(PLACED).then(RESERVE, timer)
    given(checkout, PLACED).when(RESERVED).then_nothing()
    given(checkout, PLACED, RESERVED).when(Paid(order="o")).then(Confirm(order="o"), Finished())
    given(checkout, PLACED, Paid(order="o")).when(RESERVED).then(Confirm(order="o"), Finished())
    given(checkout, PLACED).when(Rejected(RESERVE, OutOfStock(product="p"))).then(
        Cancel("patience"), Drop(order="o", why="no p left")
    )
    with pytest.raises(AssertionError, match=r"(?s)led to.*Reserve.*not.*nothing"):
        given(checkout).when(PLACED).then_nothing()


def test_what_happened_in_one_service_leads_to_commands_in_others(world: World) -> None:
    world.client.send(PLACE)
    assert seen(world, "stock") == [Reserved(product="p", order="o")]
    world.client.send(Pay(order="o"))
    assert seen(world, "orders") == [PLACED, Confirmed(order="o")]
    assert world.timers.list() == {}, "whoever is finished has no timers any more"


def test_a_rejection_comes_back_to_whoever_sent_the_command(world: World) -> None:
    for order in ("a", "b", "o"):
        world.client.send(Place(order=order, product="p", at=NOW))
    assert Dropped(order="o", why="no p left") in seen(world, "orders")
    assert set(world.timers.list()) == {("checkout", "a", "patience"), ("checkout", "b", "patience")}


def test_a_timer_fires_when_its_time_has_come_and_not_before(world: World) -> None:
    world.client.send(PLACE)
    assert world.timers.list() == {("checkout", "o", "patience"): NOW + PATIENCE}
    world.advance(PATIENCE - timedelta(seconds=1))
    assert seen(world, "orders") == [PLACED]
    world.advance(timedelta(seconds=1))
    assert seen(world, "orders") == [PLACED, Dropped(order="o", why="not paid in time")]
    assert seen(world, "stock") == [Reserved(product="p", order="o"), Released(product="p", order="o")]
    world.advance(PATIENCE)
    assert len(seen(world, "orders")) == 2, "a timer fires once"


def test_a_cancelled_timer_never_fires(world: World) -> None:
    world.client.send(PLACE)
    world.client.send(Pay(order="o"))
    world.advance(2 * PATIENCE)
    assert seen(world, "orders") == [PLACED, Confirmed(order="o")]


def test_timers_fire_in_the_order_of_their_times_whenever_the_clock_moves() -> None:
    one_partition = App("trade", partitions=1, deciders=app.deciders, processes=app.processes)
    with memory(one_partition, now=NOW) as world:
        for number, order in enumerate(("late", "early")):
            at = NOW - timedelta(minutes=number)
            world.client.send(Place(order=order, product=order, at=at), at=at)
        world.advance(2 * PATIENCE)
    dropped = [e for r in world.log.of("stock.events") for e in r]
    assert len(dropped) == 4
    orders = [e.order for e in seen(world, "orders") if isinstance(e, Dropped)]
    assert orders == ["early", "late"]


def test_an_effect_of_a_timer_happens_when_the_timer_is_due(world: World) -> None:
    world.client.send(PLACE)
    world.advance(3 * PATIENCE)
    (dropped,) = [recorded for recorded in world.events("orders") if isinstance(recorded.event, Dropped)]
    assert dropped.time == NOW + PATIENCE


def ends(world: World) -> list[object]:
    return [event for event in seen(world, "orders") if isinstance(event, Confirmed | Dropped)]


@pytest.mark.parametrize("knows", [True, False])
def test_old_events_are_loaded_one_category_after_another_and_no_timer_fires_before_what_cancels_it(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin goes by the wall clock where nothing has come yet."""
    if not knows:
        monkeypatch.setattr(log_time, "LOAD", timedelta.max)
    old = NOW - timedelta(days=300)
    with memory(app, now=NOW) as world:
        for number in range(12):
            at = old + number * PATIENCE
            world.client.send(Place(order=f"o{number}", product=f"p{number}", at=at), at=at)
        assert any(isinstance(event, Dropped) for event in ends(world)) is not knows
        for number in range(11):
            world.client.send(Pay(order=f"o{number}"), at=old + number * PATIENCE + timedelta(minutes=5))
        world.advance(log_time.SILENCE - timedelta(seconds=1))
        if knows:
            assert len(ends(world)) == 11
            assert all(isinstance(event, Confirmed) for event in ends(world))
        world.advance(timedelta(seconds=1))
    assert (ends(world).count(Dropped(order="o11", why="not paid in time")), len(ends(world))) == (1, 12)
    assert (Dropped(order="o0", why="not paid in time") in ends(world)) is not knows


def test_last_years_timers_fire_in_their_places_while_last_year_is_loaded() -> None:
    one_partition, old = App("trade", partitions=1, deciders=app.deciders, processes=app.processes), NOW.replace(2025)
    with memory(one_partition, now=NOW) as world:
        for number, order in enumerate(("paid", "late", "next")):
            at = old + timedelta(days=number)
            world.client.send(Place(order=order, product=order, at=at), at=at)
            if order != "late":
                world.client.send(Pay(order=order), at=at + timedelta(minutes=1))
        assert ends(world) == [
            Confirmed(order="paid"),
            Confirmed(order="next"),
            Dropped(order="late", why="not paid in time"),
        ]
        (dropped,) = [recorded for recorded in world.events("orders") if isinstance(recorded.event, Dropped)]
    assert dropped.time == old + timedelta(days=2), "log time, when it was known that nobody had paid"


def test_what_is_written_after_the_end_reaches_nobody(world: World) -> None:
    world.client.send(PLACE)
    world.client.send(Pay(order="o"))
    world.client.send(Drop(order="o", why="afterwards"))
    assert seen(world, "stock") == [Reserved(product="p", order="o")]
    assert Release not in {type(e) for e in seen(world, "stock")}
    assert world.dead("checkout") == []
