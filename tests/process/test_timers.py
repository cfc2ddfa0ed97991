"""Timers fire once and not too early, whatever happens meanwhile; `leftfold timers` fires and cancels them for good."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leftfold import App
from leftfold.engine.processing import log_time
from leftfold.engine.processing.log_time import Watermark
from leftfold.engine.processing.process_instance import Due, Instance, SentCommand
from leftfold.engine.processing.process_reactor import InputAccepted, InputSkipped, Outcome, Reactor, timer_of
from leftfold.engine.processing.process_wire import CANCEL, DUE, Input, due_record
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from leftfold.runtime.operations import components as process_survey
from leftfold.runtime.operations.timers import TimerWork
from leftfold.runtime.project import Usage
from tests.cli.shell import Typed, Typing, typing_with
from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place, Reserved
from tests.domains.trade import app as trade
from tests.process.alarms import Wind
from tests.process.alarms import app as belfry
from tests.process.trading import Trading, raised
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

BELLS = 3000
HOME = [bell for bell in map("bell-{}".format, range(6 * BELLS)) if partition_of(bell.encode(), 4) == 0][:BELLS]
OLD, LATER = datetime(2017, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
LATE, PATIENTLY = "not paid in time", ("--timeout", "2m")


newer, third, never = (raised(number) for number in (2, 3, 9))
punctual = App("belfry", partitions=4, deciders=belfry.deciders, processes=belfry.processes, lateness=timedelta())


@pytest.fixture
def typed(settings: KafkaSettings, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types a command with `--json`, about the trade where no other App is said."""
    plain = typing_with(capsys, "--kafka", settings.bootstrap_servers, "--json")

    def type_(*words: str, of: str = "tests.domains.trade:app") -> Typed:
        sure = ["--yes"] if words[1:2] in (("fire",), ("cancel",)) else []
        return plain(*words, *sure, *(["--app", of] if of else []))

    return type_


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers that have just begun do not wait a minute for an event that tells the time."""
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))


def rung(settings: KafkaSettings) -> Counter[str]:
    """How often each bell rang."""
    records = committed(settings, "bells.events")
    return Counter((r.key or b"").decode() for r in records if header(r.headers, "ce_type") == b"bells.Rang.v1")


@pytest.mark.faults
@pytest.mark.slow
def test_thousands_of_timers_that_are_due_at_once_fire_once_each_though_their_worker_is_replaced(
    settings: KafkaSettings,
) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    ensure(belfry, settings)
    with Trading(settings, belfry, parts=("bells", "router")) as trading:
        trading.client.send_many([Wind(bell=bell, at=past) for bell in HOME], timeout=240.0)
        wait_until(lambda: len(committed(settings, "alarm.commands")) >= BELLS, "all to be routed")
        with Trading(settings, belfry, parts=("alarm",)):
            wait_until(lambda: len(rung(settings)) > 0, "the first bell")
        with Trading(settings, belfry, parts=("alarm",)):
            wait_until(lambda: len(rung(settings)) == BELLS, lambda: f"{BELLS} bells: {len(rung(settings))}")
    assert set(rung(settings).values()) == {1}
    asked = [
        header(r.headers, "ce_id") for r in committed(settings, "bells.commands") if header(r.headers, "reply_key")
    ]
    assert set(Counter(asked).values()) == {1}


def test_a_backdated_command_holds_all_timers_back_unless_the_app_says_how_late_it_may_be(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client that may send commands may backdate them."""
    monkeypatch.setattr(process_survey, "FAR", 0.0)
    monkeypatch.setattr(Watermark, "until", lambda checkpoint, now: checkpoint)
    ensure(belfry, settings)

    def held(of: str) -> tuple[int, str]:
        result = typed("status", of=of)
        (row,) = [row for row in result.rows() if row["kind"] == "process"]
        return row["held"], result.err

    patient = "tests.process.alarms:app"
    with Trading(settings, belfry, ("bells", "router")) as trading:
        with Trading(settings, belfry, ("alarm",)):
            trading.client.send(Wind(bell="of another client", at=LATER), at=OLD, timeout=240.0)
            trading.client.send(Wind(bell="bell", at=datetime.now(UTC)), timeout=240.0)
            wait_until(lambda: held(patient)[0] == 1, lambda: f"the timer, held back: {held(patient)}")
            assert "process alarm: 1 timer held back by bells.events/" in held(patient)[1]
            assert not rung(settings)["bell"]
        with Trading(settings, punctual, ("alarm",)):
            wait_until(lambda: rung(settings)["bell"], lambda: f"the bell: {held(patient)}")
            assert held(f"{__name__}:punctual")[0] == 0


def test_loading_one_category_before_another_fires_no_timer_before_what_cancels_it(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_time, "SILENCE", timedelta(hours=1))
    placed = {f"old-{number}": OLD + number * 2 * PATIENCE for number in range(20)}
    paid = [order for number, order in enumerate(placed) if number % 5]
    with Trading(settings) as trading:
        places = [Place(order=order, product=order, at=at) for order, at in placed.items()]
        trading.client.send_many(places, times=list(placed.values()), timeout=240.0)
        wait_until(lambda: len(trading.events("stock")) >= len(placed), "every order to be seen")
        pays = [Pay(order=order) for order in paid]
        trading.client.send_many(pays, times=[placed[order] + PATIENCE / 2 for order in paid], timeout=240.0)
        for order in paid:
            trading.await_event("orders", Confirmed(order=order))
        monkeypatch.setattr(log_time, "SILENCE", timedelta(seconds=1))
        for order in placed.keys() - paid:
            trading.await_event("orders", Dropped(order=order, why=LATE))
        ends = Counter(event.order for event in trading.events("orders") if isinstance(event, Confirmed | Dropped))
        dropped = {event.order for event in trading.events("orders") if isinstance(event, Dropped)}
    assert dropped == placed.keys() - paid
    assert ends == Counter(placed.keys())


def place(trading: Trading, *orders: str) -> None:
    """Orders with a timer that is due in an hour."""
    for order in orders:
        trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
        trading.await_event("stock", Reserved(product=order, order=order))


def drops(trading: Trading, order: str) -> int:
    """How often an order ran out of time."""
    return trading.events("orders").count(Dropped(order=order, why=LATE))


def test_a_timer_is_listed_fired_once_and_cancelled_for_good_and_what_is_not_there_is_answered_with_what_is(
    settings: KafkaSettings, typed: Typing
) -> None:
    with Trading(settings) as trading:
        place(trading, "early", "kept", "behind")
        result = typed("timers", "list", "checkout").ok()
        mine = [row for row in result.rows() if row["key"] in {"early", "kept"}]
        assert {(row["key"], row["timer"], row["sends"]) for row in mine} == {
            ("early", "patience", "orders.Drop.v1"),
            ("kept", "patience", "orders.Drop.v1"),
        }
        assert [row["command"]["why"] for row in mine] == [LATE, LATE]
        assert not any(row["overdue"] for row in mine)
        assert_set_as_confirmed(settings, "early")
        by = ("--reason", "a test", "--by", "anna", *PATIENTLY)
        result = typed("timers", "fire", "checkout", "early", "patience", *by)
        (fired,) = result.rows()
        assert (result.code, fired["taken"], fired["actor"], fired["reason"]) == (0, True, "anna", "a test")
        trading.await_event("orders", Dropped(order="early", why=LATE))
        result = typed("timers", "cancel", "checkout", "kept", "patience", "--reason", "a test", *PATIENTLY)
        (cancelled,) = result.rows()
        assert (result.code, cancelled["taken"], cancelled["topic"]) == (0, True, "checkout.commands")
        assert not {"early", "kept"} & {row["key"] for row in typed("timers", "list", "checkout").rows()}
    assert (drops(trading, "early"), drops(trading, "kept")) == (1, 0)
    for words, said in REFUSED.items():
        result = typed("timers", *words).ended(2, said)
    spec = f"{__name__}:never"
    typed("timers", "list", "checkout", of=spec).ended(
        69,
        "process checkout has never run in version 9; start it: leftfold run checkout\n",
        f"for these commands: export LEFTFOLD_APP={spec} ",
    )
    assert_traced(settings, typed)


REFUSED = {
    ("fire", "checkout", "early", "patience", "--reason", "again"): "no timer is set in checkout 'early'",
    ("list", "chekout"): "did you mean checkout?",
    ("fire", "checkout", "unknown", "patience", "--reason", "r"): "process checkout has no instance 'unknown'",
    ("cancel", "checkout", "behind", "patiense", "--reason", "r"): "did you mean patience?",
    ("cancel", "checkout", "behin", "patience", "--reason", "r"): "did you mean behind?",
    ("cancel", "checkout", "behind", "patience", "--reason", " "): "why? say --reason TEXT",
    ("cancel", "checkout", "behind", "patience"): "Missing option '--reason'",
}


def assert_set_as_confirmed(settings: KafkaSettings, order: str) -> None:
    """An operator who has looked at a timer before it was set again does not fire the other one."""
    with TimerWork(trade, trade.processes[0], settings.bootstrap_servers, order) as work:
        timer = work.timer(order, "patience")
        work.check_set(timer)
        with pytest.raises(Usage, match="was set again meanwhile"):
            work.check_set(timer._replace(due=timer.due._replace(by="an earlier input")))
        instance = work.instance() or {}
        assert (instance["finished"], instance["state"]["product"]) == (False, order)
        assert instance["inputs taken"] >= 1
    with pytest.raises(Usage, match="too many to be read here; name an instance"):
        TimerWork(trade, trade.processes[0], settings.bootstrap_servers, most=0)


def assert_traced(settings: KafkaSettings, typed: Typing) -> None:
    """A trace tells who fired the timer and why."""
    orders = [r for r in committed(settings, "checkout.commands") if header(r.headers, "ce_type") == DUE]
    id_ = next(header(r.headers, "ce_id").decode() for r in orders if r.key == b"early")
    steps = typed("log", "trace", id_, of="").rows()
    (fired,) = [number for number, step in enumerate(steps) if step["asked"]]
    assert (steps[fired]["kind"], steps[fired]["details"]["actor"], steps[fired]["details"]["reason"]) == (
        "fired",
        "anna",
        "a test",
    )
    assert steps[fired + 1]["kind"] == "command"


def given_twice_while_due(settings: KafkaSettings, typed: Typing, order: str) -> None:
    """The timer is fired twice by an operator, cancelled, and its time comes, before a worker takes any of it."""
    words = ("checkout", order, "patience", "--reason", "r", "--timeout", "50ms")
    reported = [typed("timers", action, *words) for action in ("fire", "fire", "cancel")]
    assert [one.code for one in reported] == [4, 4, 4]
    assert "stays in the log and counts once one does" in reported[0].err
    (row,) = typed("timers", "list", "checkout", "--key", order).rows()
    set_ = Due(row["due"], row["sends"], json.dumps(row["command"]), row["correlation_id"], row["by"])
    due = due_record("trade", "checkout", order, "patience", set_, row["partition"])
    write_record(settings, "checkout.commands", due)


@pytest.mark.faults
def test_a_timer_that_is_fired_while_it_is_due_fires_once_and_is_not_set_by_newer_code(
    settings: KafkaSettings, typed: Typing
) -> None:
    with Trading(settings) as trading:
        place(trading, "twice", "ended")
    given_twice_while_due(settings, typed, "twice")
    assert typed("timers", "cancel", "checkout", "ended", "patience", "--reason", "r", "--timeout", "50ms").code == 4
    with Trading(settings) as trading:
        trading.await_event("orders", Dropped(order="twice", why=LATE))
    ensure(newer, settings)
    with Trading(settings, newer) as trading:
        place(trading, "later")
        keys = {row["key"] for row in typed("timers", "list", "checkout", of=f"{__name__}:newer").rows()}
        assert "later" in keys
        assert not {"twice", "ended"} & keys, "they are done with, by their inputs"
        assert (drops(trading, "twice"), drops(trading, "ended")) == (1, 0)


@pytest.mark.faults
def test_without_the_identity_of_a_setting_it_takes_effect_twice(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trading(settings) as trading:
        place(trading, "careless")
    given_twice_while_due(settings, typed, "careless")

    def careless(self: Reactor, instance: Instance[Any], given: Input) -> Outcome:
        """Believes every input that says that a timer is due, and forgets nothing."""
        name, _ = timer_of(given)
        timer = instance.timers.get(name)
        if timer is None or given.type == CANCEL:
            return InputSkipped("cancelled")
        sent = SentCommand(timer.type, timer.value)
        request = self._request(given, 0, self.commands.decode(timer.type.encode(), timer.value.encode()), sent)
        instance.waiting[request.id] = sent
        return InputAccepted((request,))

    monkeypatch.setattr(Reactor, "_due", careless)
    with Trading(settings) as trading:
        wait_until(lambda: drops(trading, "careless") > 1, lambda: f"more than one drop: {drops(trading, 'careless')}")


@pytest.mark.faults
def test_code_that_passes_over_orders_would_set_a_cancelled_timer_again(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the refold: the order must be taken from the inputs again, as it was taken then."""
    with Trading(settings) as trading:
        place(trading, "cancelled")
        result = typed("timers", "cancel", "checkout", "cancelled", "patience", "--reason", "a test", *PATIENTLY)
        assert result.rows()[0]["taken"]
    due = Reactor._due
    monkeypatch.setattr(
        Reactor, "_due", lambda self, i, given: InputSkipped("foreign") if given.type == CANCEL else due(self, i, given)
    )
    ensure(third, settings)
    with Trading(settings, third):
        rows = typed("timers", "list", "checkout", of=f"{__name__}:third").rows()
    assert "cancelled" in {row["key"] for row in rows}
