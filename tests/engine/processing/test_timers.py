"""The time of the log by which timers are due, and timers that an operator fires or cancels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import given as for_all
from hypothesis import strategies as st

from leftfold import ContractError
from leftfold.engine.causation import step_of
from leftfold.engine.processing.log_time import SILENCE, LogTime, SourceTime, Watermark, reported_time
from leftfold.engine.processing.process_instance import Due, Instance, InstanceCodec
from leftfold.engine.processing.process_reactor import InputAccepted, InputSkipped, Outcome, Reactor
from leftfold.engine.processing.process_wire import Router, due_record, read_input
from leftfold.engine.processing.timer_admin import Action, Order, SetTimer, TimerTable, order_record
from leftfold.engine.processing.worker_tasks import ProcessRefold
from leftfold.memory.event_log import MemoryLog
from leftfold.model.position import Position
from leftfold.model.state_codec import time_at
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import NOW, Checkout, Drop, Placed, checkout, checkout_with

OLD = datetime(2017, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
A, B = "orders.events/0", "orders.events/1"


def test_time_is_where_the_slowest_source_is() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(NOW, NOW)}))
    assert time.now(0) is None, "nothing is known of the other"
    time.tell(0, Watermark({B: SourceTime(OLD, NOW)}))
    assert time.now(0) == OLD


def test_a_source_at_its_end_goes_by_the_wall_clock() -> None:
    assert SourceTime(NOW, NOW, NOW + SECOND).event_time() == NOW + SECOND
    assert SourceTime(end=NOW).event_time() == NOW, "nothing ever came"
    assert SourceTime(NOW, NOW).event_time() == NOW, "more is waiting there"
    assert SourceTime().event_time() is None


def test_a_slow_load_of_old_events_is_in_the_past_until_it_falls_silent() -> None:
    loading = SourceTime(OLD, NOW, NOW + SECOND)
    assert loading.event_time() == OLD + SECOND
    assert SourceTime(OLD, NOW, NOW + SILENCE).event_time() == NOW + SILENCE
    assert SourceTime(NOW - SECOND, NOW, NOW + SECOND).event_time() == NOW + SECOND, "a second is not late"


def test_a_clock_that_runs_ahead_of_the_broker_does_not_move_time_ahead() -> None:
    assert SourceTime(NOW + timedelta(hours=1), NOW, NOW + SECOND).event_time() == NOW + SECOND
    assert SourceTime(NOW + timedelta(hours=1), NOW).event_time() == NOW


def test_a_watermark_counts_no_further_than_its_broker_time() -> None:
    """One router with a clock that is a year ahead would fire every timer, and none can be taken back."""
    checkpoint = Watermark({A: SourceTime(end=NOW + timedelta(days=365)), B: SourceTime(NOW, NOW, NOW + SECOND)})
    record = RawRecord("checkout.time", 0, 0, None, checkpoint.encode(), [], int((NOW + 2 * SECOND).timestamp() * 1000))
    time, rash = LogTime([A, B]), LogTime([A, B])
    time.tell(0, Watermark.of(record))
    rash.tell(0, checkpoint)
    assert (time.now(0), time.clock) == (NOW + SECOND, NOW + 2 * SECOND)
    assert rash.clock == NOW + timedelta(days=365), "the twin takes any time"
    assert Watermark.of(record).sources[A].event_time() == NOW + 2 * SECOND


def test_a_watermark_counts_once_the_inputs_before_it_are_taken() -> None:
    time = LogTime([A])
    time.tell(3, Watermark({A: SourceTime(OLD, NOW)}, {3: 5}))
    time.tell(3, Watermark({A: SourceTime(NOW, NOW)}, {3: 9}))
    assert time.now(4) is None
    assert time.now(5) == OLD
    assert time.now(8) == OLD
    assert time.now(9) == NOW


def test_a_watermark_for_inputs_that_never_come_holds_back_no_later_one() -> None:
    time = LogTime([A])
    time.tell(0, Watermark({A: SourceTime(OLD, NOW)}, {0: 10**15}))
    time.tell(0, Watermark({A: SourceTime(NOW, NOW)}, {0: 5}))
    assert (time.now(4), time.now(5)) == (None, NOW)


def test_a_worker_that_is_behind_keeps_some_watermarks_with_the_last_and_time_is_never_earlier() -> None:
    time = LogTime([A])
    for number in range(10_000):
        time.tell(0, Watermark({A: SourceTime(NOW + number * SECOND, NOW + number * SECOND)}, {0: number}))
    assert len(time._pending[A]) <= 256
    assert all((time.now(number) or NOW) <= NOW + number * SECOND for number in range(9_999))
    assert time.now(9_999) == NOW + 9_999 * SECOND


def test_an_input_moves_the_time_of_its_source() -> None:
    time = LogTime([A])
    time.tell(0, Watermark({A: SourceTime(end=NOW)}))
    assert time.now(0) == NOW
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 5}))
    time.saw(A, OLD, NOW, 6, 3)
    assert time.now(7) == OLD, "old events are being loaded, and the next mark is not here yet"
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 6}))
    assert time.now(7) == OLD, "this one was known before"
    time.saw("elsewhere/0", NOW, NOW, 7, 0)
    assert time.now(8) == OLD
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 8}))
    assert time.now(8) == NOW


@pytest.mark.parametrize("names_next", [True, False], ids=["", "twin"])
def test_a_duplicate_that_is_written_late_does_not_hold_time_back(names_next: bool) -> None:
    """The routers know nothing of the record at 7: the twin's watermarks never count again."""
    time = LogTime([A])
    time.saw(A, OLD, OLD, 6, 3)
    time.saw(A, OLD, OLD, 7, 3)
    time.tell(0, Watermark({A: SourceTime(OLD, OLD, NOW)}, {0: 7}, {A: 3}))
    assert time.now(8) == OLD, "this router has not routed that event yet"
    time.tell(0, Watermark({A: SourceTime(OLD, OLD, NOW)}, {0: 7}, {A: 4} if names_next else {}))
    assert time.now(8) == (NOW if names_next else OLD)


def test_while_a_category_is_loaded_an_empty_one_does_not_move_time() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, NOW + SECOND), B: SourceTime(end=NOW + SECOND)}))
    assert time.now(0) is None, "what belongs to B may be loaded next"
    time.tell(0, Watermark({B: SourceTime(OLD - SECOND, NOW + SECOND, NOW + SECOND)}))
    assert time.now(0) == OLD - SECOND
    quiet = NOW + 2 * SILENCE
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, quiet), B: SourceTime(OLD, quiet, quiet)}))
    assert time.now(0) == OLD, "A has been silent for long, but the load continues"
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, quiet), B: SourceTime(NOW, NOW, quiet)}))
    assert time.now(0) == quiet, "nothing old has come for a minute"


def test_an_old_input_shows_a_load_before_any_watermark_does() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(end=NOW), B: SourceTime(end=NOW)}))
    time.saw(A, OLD, NOW, 0, 0)
    assert time.now(1) is None


def test_events_that_come_hours_late_are_no_load() -> None:
    time, hours = LogTime([A, B]), timedelta(hours=23)
    time.tell(0, Watermark({A: SourceTime(NOW - hours, NOW, NOW + SECOND), B: SourceTime(end=NOW + SECOND)}))
    assert time.now(0) == NOW + SECOND - hours, "an empty partition does not stop timers for what comes late by nature"


def test_log_time_is_never_later_than_the_known_clock() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(OLD, OLD + SECOND), B: SourceTime(OLD + SECOND, OLD + SECOND)}))
    assert time.now(0) == OLD
    assert time.clock == OLD + SECOND
    time.saw(A, OLD + SILENCE, OLD + SILENCE, 0, 0)
    assert time.clock == OLD + SILENCE
    time.tell(0, Watermark({B: SourceTime(end=NOW)}, {0: 7}))
    assert time.clock == NOW, "what waits for inputs tells the clock at once"


def test_a_watermark_comes_back_from_its_record_and_other_bytes_are_refused() -> None:
    checkpoint = Watermark({A: SourceTime(OLD, NOW, NOW + SECOND), B: SourceTime()}, {0: 7, 11: 0}, {A: 5})
    assert Watermark.decode(checkpoint.encode()) == checkpoint
    assert Watermark.decode(b'{"sources":{"a":{"newer":1}},"inputs":{},"more":2}') == Watermark({"a": SourceTime()})
    for wrong in (b"", b"{}", b"[]", b'{"sources":{"a":{"time":"x"}},"inputs":{}}', b'{"sources":[],"inputs":{}}'):
        with pytest.raises(ContractError, match="says no time"):
            Watermark.decode(wrong)


@pytest.mark.parametrize("lateness", [None, timedelta(hours=1), timedelta()])
def test_late_events_hold_time_back_no_longer_than_the_lateness_of_the_app(lateness: timedelta | None) -> None:
    time = LogTime([A, B], lateness)
    for round_ in range(100):
        at = NOW + round_ * timedelta(seconds=50)
        time.tell(0, Watermark({A: SourceTime(OLD, at, at + SECOND), B: SourceTime(end=at + SECOND)}))
        time.saw(A, OLD, at, round_, round_)
    if lateness is None:
        assert time.now(100) is None, "the twin: old events seem to be loaded, and no timer is due"
    else:
        assert time.now(100) == at - lateness


def test_events_within_the_lateness_hold_time_back() -> None:
    late = SourceTime(NOW - timedelta(minutes=30), NOW, NOW + SECOND)
    assert late.within(timedelta(hours=1)) == late
    assert SourceTime().within(timedelta()) == SourceTime()
    assert not late.within(timedelta()).is_loaded(NOW)


ANY_TIME = st.one_of(
    st.none(), st.sampled_from([0, -1, 1 << 62, -(1 << 62), 1_767_225_600_000]).map(time_at),
    st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(days=-3), timedelta(days=3)).map(NOW.__add__),
)  # fmt: skip


@given(ANY_TIME, ANY_TIME, ANY_TIME, st.booleans())
def test_any_times_of_a_source_leave_the_clock_valid(
    time: datetime | None, appended: datetime | None, end: datetime | None, loading: bool
) -> None:
    source = SourceTime(time, appended, end)
    at = source.event_time(loading=loading)
    assert at is None or time is None or at in (time, appended, end) or time <= at
    log = LogTime(["a"])
    log.tell(0, Watermark.decode(Watermark({"a": source}).encode()))
    log.now(0)


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
    refold = ProcessRefold(checkout_with(version=2), {})
    for record in taking.log:
        refold.add(record)
    again = dict(refold.take(10))
    assert (again.get("o") or taking.codec.encode(taking.codec.new())) == taking.codec.encode(taking.instance)


def test_a_trace_shows_who_ordered_a_timer_and_why(taking: Taking) -> None:
    for action, kind in ((Action.FIRE, "fired"), (Action.CANCEL, "cancelled")):
        found = step_of(taken_in("checkout.commands", order(taking.timer(), action), 3))
        assert found is not None
        assert (found.kind, found.details["actor"], found.details["reason"]) == (kind, "anna", "ticket 1")
        assert (found.beside, found.cause) == ("checkout.commands", taking.timer().due.by)


def test_the_timer_table_holds_the_current_settings_and_awaits_their_end(taking: Taking) -> None:
    log, state = MemoryLog(), "checkout.state.v1"
    log.create(state, 2)
    table = TimerTable(log.reader(), state, Position({state: {0: 0, 1: 0}}))
    log.append(state, 0, b"@", b'{"commands": 1}', ())
    log.append(state, 0, b"o", taking.codec.encode(taking.instance), ())
    log.append(state, 1, b"other", taking.codec.encode(taking.codec.new()), ())
    for key, value in ((b"o", b"garbage"), (b"o", b'{"version":1,"state":1}'), (b"\xff", b"{}"), (b"", b"{}")):
        log.append(state, 0, key, value, ())  # by others
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
    watermark = Watermark({f"{name}/0": source for name, source in sources.items()})
    return RawRecord("checkout.time", 0, offset, None, watermark.encode(), (), appended(offset))


def test_log_time_is_that_of_the_slowest_source_by_its_last_watermark() -> None:
    early, late = SourceTime(NOW, NOW), SourceTime(SOON, SOON)
    checkpoints = [
        checkpoint(1, a=early, b=early),
        checkpoint(2, a=late),
        RawRecord("checkout.time", 0, 3, None, b"newer", (), appended(9)),
    ]
    watermark = reported_time(checkpoints, ["a/0", "b/0"])
    assert (watermark.now, watermark.slowest, watermark.silent) == (NOW, "b/0", ())
    assert watermark.reported == SOON + timedelta(seconds=2)


def test_while_a_source_is_silent_log_time_is_unknown() -> None:
    watermark = reported_time([checkpoint(1, a=SourceTime(NOW, NOW), b=SourceTime())], ["a/0", "b/0", "c/0"])
    assert (watermark.now, watermark.slowest, watermark.silent) == (None, "", ("b/0", "c/0"))
    assert reported_time([], ["a/0"]).reported is None


def test_the_timers_of_a_record_are_read_whatever_its_state_says() -> None:
    codec: InstanceCodec[Any] = InstanceCodec(checkout.state, checkout.initial_state)
    instance = codec.new()
    instance.state = Checkout(product='"timers":{}')
    assert not InstanceCodec.has_timers(codec.encode(instance))
    drop = Drop(order="o", why='"timers":{}').model_dump_json()
    instance.timers = {"patience": Due("2026-01-01T01:00:00Z", "orders.Drop.v1", drop, "c", "e")}
    assert InstanceCodec.has_timers(codec.encode(instance))
    assert InstanceCodec.timers(codec.encode(instance)) == instance.timers
