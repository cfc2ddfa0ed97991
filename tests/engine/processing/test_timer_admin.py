"""Timers that an operator fires or cancels: inputs like any other, each for one setting of a timer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from leftfold.engine.causation import step_of
from leftfold.engine.processing.log_time import SourceTime, Watermark, told_time
from leftfold.engine.processing.process_instance import Due, Instance, InstanceCodec
from leftfold.engine.processing.process_reactor import InputAccepted, InputSkipped, Outcome, Reactor
from leftfold.engine.processing.process_wire import Router, due_record, read_input
from leftfold.engine.processing.recovery import ProcessRefold
from leftfold.engine.processing.stream_state import MemoryStates
from leftfold.engine.processing.timer_admin import Action, Order, SetTimer, TimerTable, order_record
from leftfold.memory.event_log import MemoryLog
from leftfold.model.position import Position
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import NOW, Checkout, Drop, Placed, checkout, checkout_with

SOON = NOW + timedelta(minutes=5)


def taken_in(topic: str, out: Outgoing, offset: int) -> RawRecord:
    return RawRecord(topic, out.partition, offset, out.key, out.value, out.headers)


def routed(event: Placed, offset: int, process: Any = checkout) -> Outgoing:
    headers = [("ce_type", b"orders.Placed.v1"), ("ce_id", b"e%d" % offset), ("ce_time", b"2026-01-01T00:00:00Z")]
    value = event.model_dump_json().encode()
    out = Router("trade", process, lambda key: 0).route(RawRecord("orders.events", 0, offset, b"o", value, headers))
    assert out is not None
    return out


def order(timer: SetTimer, action: Action) -> Outgoing:
    return order_record("trade", "checkout", timer, Order(action, "anna", "ticket 1", SOON))


class Taking:
    """An instance that takes inputs, all of which are kept."""

    def __init__(self, process: Any = checkout) -> None:
        self.process, self._reactor = process, Reactor(process)
        self.codec: InstanceCodec[Checkout] = InstanceCodec(process.state, process.initial_state)
        self.instance: Instance[Checkout] = self.codec.new()
        self.log: list[RawRecord] = []

    def take(self, out: Outgoing) -> Outcome:
        self.log.append(taken_in("checkout.commands", out, len(self.log)))
        return self._reactor.take(self.instance, read_input(self.log[-1]))

    def timer(self) -> SetTimer:
        return SetTimer(0, "o", "patience", self.instance.timers["patience"])


@pytest.fixture
def taking() -> Taking:
    """An order that waits for its payment."""
    taking = Taking()
    assert isinstance(taking.take(routed(Placed(order="o", product="p", at=NOW), 0)), InputAccepted)
    return taking


def test_a_timer_that_is_fired_sends_its_command_with_the_time_of_the_order(taking: Taking) -> None:
    timer = taking.timer()
    fired = order(timer, Action.FIRE)
    outcome = taking.take(fired)
    assert isinstance(outcome, InputAccepted)
    (reaction,) = outcome.commands
    assert reaction.sent.type == "orders.Drop.v1"
    assert header(fired.headers, "ce_time") == b"2026-01-01T00:05:00Z"
    assert taking.instance.timers == {}


def test_a_timer_that_is_cancelled_sends_nothing_and_is_removed(taking: Taking) -> None:
    before = taking.instance.version
    assert taking.take(order(taking.timer(), Action.CANCEL)) == InputAccepted(())
    assert taking.instance.timers == {}
    assert taking.instance.version == before + 1


def test_the_second_order_for_one_setting_of_a_timer_does_nothing(taking: Taking) -> None:
    timer = taking.timer()
    by_itself = due_record("trade", "checkout", "o", "patience", timer.due, 0)
    orders = [order(timer, Action.FIRE), order(timer, Action.CANCEL), by_itself, order(timer, Action.FIRE)]
    outcomes = [taking.take(out) for out in orders]
    assert [isinstance(outcome, InputAccepted) for outcome in outcomes] == [True, False, False, False]
    assert outcomes[1:] == [InputSkipped("cancelled")] * 3


def test_an_order_for_a_setting_leaves_a_later_one_alone(taking: Taking) -> None:
    """Without the identity of the setting, the timer as it was set later would be fired or ended."""
    stale = taking.timer()
    taking.take(routed(Placed(order="o", product="p", at=SOON), 1))
    assert taking.instance.timers["patience"].by != stale.due.by
    for action in Action:
        assert taking.take(order(stale, action)) == InputSkipped("cancelled")
    assert taking.instance.timers["patience"].at == "2026-01-01T01:05:00Z"
    careless = stale._replace(due=taking.instance.timers["patience"])
    assert isinstance(taking.take(order(careless, Action.FIRE)), InputAccepted)


@for_all(st.lists(st.sampled_from(["placed", "fire", "cancel", "due", "stale"]), max_size=8))
def test_orders_are_folded_again_as_they_were_taken(moves: list[str]) -> None:
    taking, settings = Taking(), list[SetTimer]()
    for number, move in enumerate(moves):
        if "patience" in taking.instance.timers:
            settings.append(taking.timer())
        if move == "placed" or not settings:
            taking.take(routed(Placed(order="o", product="p", at=NOW + timedelta(seconds=number)), number))
            continue
        timer = settings[0] if move == "stale" else settings[-1]
        if move == "due":
            taking.take(due_record("trade", "checkout", "o", "patience", timer.due, 0))
        else:
            taking.take(order(timer, Action.CANCEL if move == "cancel" else Action.FIRE))
    refold = ProcessRefold(checkout_with(version=2), MemoryStates())
    for record in taking.log:
        refold.add(record)
    again = dict(refold.take(10))
    assert (again.get("o") or taking.codec.encode(taking.codec.new())) == taking.codec.encode(taking.instance)


def test_a_trace_shows_who_ordered_a_timer_and_why(taking: Taking) -> None:
    for action, kind in ((Action.FIRE, "fired"), (Action.CANCEL, "cancelled")):
        found = step_of(taken_in("checkout.commands", order(taking.timer(), action), 3))
        assert found is not None
        assert (found.kind, found.told["actor"], found.told["reason"]) == (kind, "anna", "ticket 1")
        assert (found.beside, found.cause) == ("checkout.commands", taking.timer().due.by)


def test_the_timer_table_holds_the_current_settings_and_awaits_their_end(taking: Taking) -> None:
    log, state = MemoryLog(), "checkout.state.v1"
    log.create(state, 2)
    table = TimerTable(log.reader(), state, Position({state: {0: 0, 1: 0}}))
    log.append(state, 0, b"@", b'{"commands": 1}', ())
    log.append(state, 0, b"o", taking.codec.encode(taking.instance), ())
    log.append(state, 1, b"other", taking.codec.encode(taking.codec.new()), ())
    table.read()
    assert list(table.timers()) == list(table.timers("o")) == [taking.timer()]
    assert list(table.timers("other")) == []
    assert table.keys == {"o", "other"}
    timer = taking.timer()
    assert not table.await_taken(timer, 0.01)
    taking.take(order(timer, Action.CANCEL))
    log.append(state, 0, b"o", taking.codec.encode(taking.instance), ())
    assert table.await_taken(timer, 60.0)


def test_a_setting_that_was_replaced_counts_as_taken(taking: Taking) -> None:
    log, state = MemoryLog(), "checkout.state.v1"
    log.create(state, 1)
    stale = taking.timer()
    taking.take(routed(Placed(order="o", product="p", at=SOON), 1))
    log.append(state, 0, b"o", taking.codec.encode(taking.instance), ())
    table = TimerTable(log.reader(), state, Position({state: {0: 0}}))
    table.read()
    assert table.await_taken(stale, 0.0)


def appended(offset: int) -> int:
    """When the broker appended a checkpoint, in milliseconds: later than all that the checkpoints say."""
    return int(SOON.timestamp() * 1000) + 1_000 * offset


def checkpoint(offset: int, **sources: SourceTime) -> RawRecord:
    told = Watermark({f"{name}/0": source for name, source in sources.items()})
    return RawRecord("checkout.time", 0, offset, None, told.encode(), (), appended(offset))


def test_log_time_is_that_of_the_slowest_source_by_its_last_watermark() -> None:
    early, late = SourceTime(NOW, NOW), SourceTime(SOON, SOON)
    checkpoints = [
        checkpoint(1, a=early, b=early),
        checkpoint(2, a=late),
        RawRecord("checkout.time", 0, 3, None, b"newer", (), appended(9)),
    ]
    told = told_time(checkpoints, ["a/0", "b/0"])
    assert (told.now, told.slowest, told.silent) == (NOW, "b/0", ())
    assert told.told == SOON + timedelta(seconds=2)


def test_while_a_source_is_silent_log_time_is_unknown() -> None:
    told = told_time([checkpoint(1, a=SourceTime(NOW, NOW), b=SourceTime())], ["a/0", "b/0", "c/0"])
    assert (told.now, told.slowest, told.silent) == (None, "", ("b/0", "c/0"))
    assert told_time([], ["a/0"]).told is None


def test_the_timers_of_a_record_are_read_whatever_its_state_says() -> None:
    codec: InstanceCodec[Any] = InstanceCodec(checkout.state, checkout.initial_state)
    instance = codec.new()
    instance.state = Checkout(product='"timers":{}')
    assert not InstanceCodec.has_timers(codec.encode(instance))
    drop = Drop(order="o", why='"timers":{}').model_dump_json()
    instance.timers = {"patience": Due("2026-01-01T01:00:00Z", "orders.Drop.v1", drop, "c", "e")}
    assert InstanceCodec.has_timers(codec.encode(instance))
    assert InstanceCodec.timers(codec.encode(instance)) == instance.timers
