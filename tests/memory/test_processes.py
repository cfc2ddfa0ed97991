"""Processes in a world in memory: timers, rejections, stopped workers, and what comes behind an end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leftfold import App, Cancel, Finished, OutcomeUnknown, Process, Rejected, Timer, World, memory
from leftfold.engine.processing import log_time
from leftfold.engine.processing.process_reactor import Reactor
from leftfold.errors import ConfigurationError, ContractError
from leftfold.ports.message_codec import header
from leftfold.testing import given
from tests.domains.trade import (
    NOW,
    PATIENCE,
    PLACED,
    RESERVED,
    Checkout,
    Confirm,
    Confirmed,
    Drop,
    Dropped,
    Input,
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
    checkout_with,
    orders,
    stock,
)

PLACE = Place(order="o", product="p", at=NOW)
LATE = Dropped(order="o", why="not paid in time")
RESERVE, DROP = Reserve(product="p", order="o"), Drop(order="o", why="not paid in time")


@pytest.fixture
def world() -> World:
    with memory(app, now=NOW) as world:
        return world


@pytest.fixture
def placed(world: World) -> World:
    """An order that waits to be paid."""
    world.client.send(PLACE)
    return world


def events_of(world: World, category: str) -> list[object]:
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


def test_what_happened_in_one_service_leads_to_commands_in_others(placed: World) -> None:
    assert events_of(placed, "stock") == [RESERVED]
    placed.client.send(Pay(order="o"))
    assert events_of(placed, "orders") == [PLACED, Confirmed(order="o")]
    assert placed.timers.list() == {}, "a finished instance has no timers any more"


def test_a_rejection_comes_back_to_the_process_that_sent_the_command(world: World) -> None:
    for order in ("a", "b", "o"):
        world.client.send(Place(order=order, product="p", at=NOW))
    assert Dropped(order="o", why="no p left") in events_of(world, "orders")
    assert set(world.timers.list()) == {("checkout", "a", "patience"), ("checkout", "b", "patience")}


def test_a_timer_fires_when_its_time_has_come_and_not_before(placed: World) -> None:
    assert placed.timers.list() == {("checkout", "o", "patience"): NOW + PATIENCE}
    placed.advance(PATIENCE - timedelta(seconds=1))
    assert events_of(placed, "orders") == [PLACED]
    placed.advance(timedelta(seconds=1))
    assert events_of(placed, "orders") == [PLACED, LATE]
    assert events_of(placed, "stock") == [RESERVED, Released(product="p", order="o")]
    placed.advance(PATIENCE)
    assert len(events_of(placed, "orders")) == 2, "a timer fires once"


def test_timers_fire_in_the_order_of_their_times_whenever_the_clock_moves() -> None:
    one_partition = App("trade", partitions=1, deciders=app.deciders, processes=app.processes)
    with memory(one_partition, now=NOW) as world:
        for number, order in enumerate(("late", "early")):
            at = NOW - timedelta(minutes=number)
            world.client.send(Place(order=order, product=order, at=at), at=at)
        world.advance(2 * PATIENCE)
    dropped = [e for r in world.log.of("stock.events") for e in r]
    assert len(dropped) == 4
    orders = [e.order for e in events_of(world, "orders") if isinstance(e, Dropped)]
    assert orders == ["early", "late"]


def test_an_effect_of_a_timer_happens_when_the_timer_is_due(placed: World) -> None:
    placed.advance(3 * PATIENCE)
    (dropped,) = [recorded for recorded in placed.events("orders") if isinstance(recorded.event, Dropped)]
    assert dropped.time == NOW + PATIENCE


def ends(world: World) -> list[object]:
    return [event for event in events_of(world, "orders") if isinstance(event, Confirmed | Dropped)]


@pytest.mark.parametrize("knows", [True, False])
def test_no_timer_fires_before_its_cancellation_while_old_categories_are_loaded(
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


def test_old_timers_fire_in_their_places_while_old_events_are_loaded() -> None:
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
    assert dropped.time == old + timedelta(days=2), "log time, when it was known that the order was not paid"


def test_events_after_the_end_of_an_instance_are_ignored(placed: World) -> None:
    placed.client.send(Pay(order="o"))
    placed.client.send(Drop(order="o", why="afterwards"))
    assert events_of(placed, "stock") == [RESERVED]
    assert Release not in {type(e) for e in events_of(placed, "stock")}
    assert placed.dead("checkout") == []


def test_an_operator_fires_a_timer_once_and_is_named_in_its_record(placed: World) -> None:
    placed.advance(timedelta(minutes=5))
    placed.timers.fire("checkout", "o", "patience", reason="the customer left", by="anna")
    assert events_of(placed, "orders").count(LATE) == 1
    assert placed.timers.list() == {}
    placed.advance(2 * PATIENCE)
    assert events_of(placed, "orders").count(LATE) == 1
    (order,) = [r for records in placed.log.of("checkout.commands") for r in records if b"anna" in (r.value or b"")]
    assert header(order.headers, "ce_type") == b"leftfold.due.v1"
    (dropped,) = [recorded for recorded in placed.events("orders") if recorded.event == LATE]
    assert dropped.time == NOW + timedelta(minutes=5)


def test_a_timer_that_an_operator_cancels_never_fires(placed: World) -> None:
    placed.timers.cancel("checkout", "o", "patience")
    placed.advance(2 * PATIENCE)
    assert LATE not in events_of(placed, "orders")
    placed.client.send(Pay(order="o"))
    assert Confirmed(order="o") in events_of(placed, "orders")


def test_timers_are_listed_by_process_and_key(placed: World) -> None:
    placed.client.send(Place(order="other", product="q", at=NOW))
    assert set(placed.timers.list("checkout")) == {("checkout", "o", "patience"), ("checkout", "other", "patience")}
    assert placed.timers.list(key="o") == {("checkout", "o", "patience"): NOW + PATIENCE}
    with pytest.raises(ConfigurationError, match="app trade has no process .elsewhere.; it has: checkout"):
        placed.timers.list("elsewhere")
    for act in (placed.timers.fire, placed.timers.cancel):
        with pytest.raises(
            ConfigurationError, match=r"no timer 'late' is set in checkout 'o'; there are: .*o patience"
        ):
            act("checkout", "o", "late")


def test_a_stopped_worker_takes_nothing_until_it_is_started(placed: World) -> None:
    placed.stop("payments")
    with pytest.raises(OutcomeUnknown):
        placed.client.send(Pay(order="o"), id="pay")
    placed.stop("checkout")
    placed.advance(2 * PATIENCE)
    placed.start("payments")
    assert LATE not in events_of(placed, "orders"), "the worker whose timer it is does not run"
    assert len(events_of(placed, "payments")) == 1
    assert Confirmed(order="o") not in events_of(placed, "orders")
    placed.start("checkout")
    assert Confirmed(order="o") in events_of(placed, "orders"), "it was there before anybody said that the timer is due"
    assert LATE not in events_of(placed, "orders")
    with pytest.raises(ConfigurationError, match=r"no decider or process 'paiments'; there are: .*payments"):
        placed.stop("paiments")


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


def test_a_rejection_after_the_end_is_an_input_where_declared_and_else_a_dead_letter() -> None:
    world = sell_out(checkout_with(react=ends_at_once))
    assert Dropped(order="c", why="no p left") in events_of(world, "orders")
    assert world.dead("checkout") == []
    deaf = checkout_with(react=ends_at_once, inputs=Placed | Reserved, sends=Reserve | Release | Drop)
    (letter,) = sell_out(deaf).dead("checkout")
    assert b"has no input Rejected[Reserve]" in header(letter.headers, "dead_reason")


def test_events_after_the_end_are_ignored_and_twin_an_instance_that_forgot_its_end_takes_them(
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


def test_everything_that_follows_from_a_command_carries_on_whose_behalf_it_was_sent(world: World) -> None:
    world.client.send(PLACE, principal="ann")
    world.client.send(Place(order="other", product="p", at=NOW))
    found = {
        (recorded.key, recorded.principal) for category in ("orders", "stock") for recorded in world.events(category)
    }
    assert found == {("o", "ann"), ("other", ""), ("p", "ann"), ("p", "")}
    world.advance(PATIENCE)
    dropped = [recorded for recorded in world.events("orders") if isinstance(recorded.event, Dropped)]
    assert [recorded.principal for recorded in dropped] == ["", ""]  # a timer acts for no caller


def test_a_principal_has_a_longest_name(world: World) -> None:
    with pytest.raises(ContractError, match="longer than"):
        world.client.send(PLACE, principal="a" * 2000)
    assert world.events("orders") == []


def sending(out: object) -> Process[Any, Any, Any]:
    return checkout_with(react=lambda given, state: out)


NOON: Any = "noon"
FIVE: Any = 5
UNSENDABLE: dict[str, tuple[object, str]] = {
    "nothing": (None, "react gave None; give a list of what to send"),
    "one command": (DROP, r"react gave Drop\(order='o', why='not paid in time'\); give a list"),
    "a class": ([Cancel], r"that is the class itself; write Cancel\(\.\.\.\)"),
    "an event": ([Confirmed(order="o")], "a process gives commands, Timer, Cancel and Finished only"),
    "a command it may not send": ([Pay(order="o")], "it may not send Pay; add the class to sends="),
    "no key": ([Confirm(order="")], "its key order='' is none"),
    "the key that is reserved": ([Confirm(order="@")], "its key order='@' is none"),
    "a timer without key": ([Timer(name="t", at=NOW, command=Confirm(order=""))], "its key order='' is none"),
    "a timer without zone": (
        [Timer(name="t", at=NOW.replace(tzinfo=None), command=DROP)],
        "no time zone; take it from an event",
    ),
    "a timer of some time": ([Timer(name="t", at=NOON, command=DROP)], "is a datetime, not 'noon'"),
    "a timer called 5": ([Timer(name=FIVE, at=NOW, command=DROP)], "a timer's name is a text"),
    "a cancel called 5": ([Cancel(FIVE)], "a timer's name is a text"),
}


def trade_with(process: Process[Any, Any, Any]) -> App:
    return App("trade", deciders=[orders, stock], processes=[process])


@pytest.mark.parametrize("what", UNSENDABLE)
def test_what_cannot_be_sent_is_dead_lettered_with_the_reason(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """A timer whose name was no text was due for ever: the world, as a worker, never came to an end."""
    out, message = UNSENDABLE[what]
    with memory(trade_with(sending(out)), now=NOW) as world:
        world.client.send(PLACE)
        world.advance(PATIENCE)
        (dead,) = world.dead("checkout")
        assert not world.timers.list()
    (reason,) = [value.decode() for name, value in dead.headers if name == "dead_reason"]
    assert re.search(message, reason), reason
    assert [record.getMessage() for record in caplog.records] == [f"checkout: dead-lettered: {reason}"]


def test_a_state_of_another_type_is_never_stored() -> None:
    turned = checkout_with(react=lambda given, state: [], evolve=lambda state, given: "placed")
    with memory(trade_with(turned), now=NOW) as world:
        world.client.send(PLACE)
        world.client.send(PLACE)
        assert len(world.dead("checkout")) == 2, "the second one met a state that it could read"


def test_a_timer_that_is_never_due_is_no_trouble_for_the_clock() -> None:
    def react(given: Input, state: Checkout) -> Sequence[Timer[Any]]:
        never = datetime.max.replace(tzinfo=UTC)
        return [Timer(name="never", at=never, command=DROP)] if isinstance(given, Placed) else []

    with memory(_trade(react=react), now=NOW) as world:
        world.client.send(PLACE, at=NOW - timedelta(hours=1))
        world.advance(timedelta(minutes=5))
        assert list(world.timers.list()) == [("checkout", "o", "never")]


def test_a_router_stays_before_an_event_that_it_cannot_route() -> None:
    def correlate(given: Input) -> str:
        if isinstance(given, Placed) and given.order == "bad":
            raise ValueError("no such order")
        return "o"

    with memory(_trade(correlate=correlate), now=NOW) as world:
        for order in ("bad", "good"):
            with pytest.raises(ContractError, match="checkout.correlate failed on .*bad.*no such order"):
                world.client.send(Place(order=order, product="p", at=NOW))
        assert world.events("stock") == []


def test_a_router_that_stays_holds_up_neither_other_processes_nor_what_it_does_not_read() -> None:
    def correlate(given: Placed) -> str:
        raise ValueError("no such order")

    broken = Process(
        "broken",
        inputs=Placed,
        sends=Drop,
        state=Checkout,
        initial_state=Checkout(),
        correlate=correlate,
        react=lambda given, state: [],
        evolve=lambda state, given: state,
    )
    with memory(App("trade", deciders=app.deciders, processes=[broken, checkout]), now=NOW) as world:
        for order in ("o", "other"):
            with pytest.raises(ContractError, match="broken.correlate failed"):
                world.client.send(Place(order=order, product="p", at=NOW))
        world.client.send(Pay(order="elsewhere"))
        assert events_of(world, "stock") == [RESERVED, Reserved(product="p", order="other")]


def _trade(**other: Any) -> App:
    return App("trade", deciders=app.deciders, processes=[checkout_with(**other)])
