"""Timers fire once and not too early, whatever happens to whoever watches the time."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from leftfold.engine.processing import log_time
from leftfold.engine.processing.process_instance import Instance
from leftfold.engine.processing.process_reactor import InputSkipped, Reactor, timer_of
from leftfold.engine.processing.process_wire import DUE, Input
from leftfold.engine.processing.timers import Timers
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.codec import header
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place
from tests.process.alarms import Wind
from tests.process.alarms import app as belfry
from tests.process.child import Child
from tests.process.children import StartChild
from tests.process.trading import Trading, committed
from tests.waiting import wait_until
from tests.worker.points import Point

pytestmark = pytest.mark.servers

BELLS = 5000
PARTS = ("bells", "alarm", "router")
HOME = [bell for bell in map("bell-{}".format, range(6 * BELLS)) if partition_of(bell.encode(), 4) == 0][:BELLS]


def rung(settings: KafkaSettings) -> Counter[str]:
    """How often each bell rang."""
    records = committed(settings, "bells.events")
    return Counter((r.key or b"").decode() for r in records if header(r.headers, "ce_type") == b"bells.Rang.v1")


def due(settings: KafkaSettings) -> dict[str, list[RawRecord]]:
    """What says that timers are due, by bell."""
    found: dict[str, list[RawRecord]] = {}
    for record in committed(settings, "alarm.commands"):
        if header(record.headers, "ce_type") == DUE:
            found.setdefault((record.key or b"").decode(), []).append(record)
    return found


def asked(settings: KafkaSettings) -> Counter[bytes]:
    """How often each command that the process sent is there."""
    records = committed(settings, "bells.commands")
    return Counter(header(r.headers, "ce_id") for r in records if header(r.headers, "reply_key"))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers that have just begun do not wait a minute for an event that tells the time."""
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))


@pytest.fixture
def bells(settings: KafkaSettings) -> KafkaSettings:
    ensure(belfry, settings)
    return settings


@pytest.mark.faults
@pytest.mark.slow
def test_thousands_of_timers_that_are_due_at_once_fire_once_each_across_kills(
    bells: KafkaSettings, start: StartChild
) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    with Trading(bells, belfry, parts=("bells", "router")) as trading:
        trading.client.send_many([Wind(bell=bell, at=past) for bell in HOME], timeout=240.0)
        wait_until(lambda: len(committed(bells, "alarm.commands")) >= BELLS, "all to be routed")
        for at, nth in (("after timer", 2), ("after commit_transaction", 4), ("before commit_transaction", 4)):
            doomed = start(
                Child(bells.bootstrap_servers, "alarm", "tests.process.alarms:app", points=(Point(at, nth=nth),))
            )
            assert doomed.wait_end() == -signal.SIGKILL, str(doomed)
        assert len(due(bells)) > 0, "nothing was on its way when it was killed"
        with Trading(bells, belfry, parts=("alarm",)):
            wait_until(lambda: len(rung(bells)) == BELLS, lambda: f"{BELLS} bells: {len(rung(bells))}")
    assert set(rung(bells).values()) == {1}
    assert set(asked(bells).values()) == {1}
    assert len(due(bells)) == BELLS


@pytest.mark.parametrize("remembers", [True, False])
def test_what_is_said_to_be_due_again_and_again_is_done_once(
    bells: KafkaSettings, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the worker forgets what it has said; the twin forgets, too, that a timer has fired."""
    taken = Reactor._due

    def forgets(self: Reactor, instance: Instance[int], given: Input) -> object:
        name, _ = timer_of(given)
        timer = instance.timers.get(name)
        outcome = taken(self, instance, given)
        if timer is not None and not isinstance(outcome, InputSkipped):
            instance.timers[name] = timer
        return outcome

    monkeypatch.setattr(Timers, "fired", lambda self, key, name, by: None)
    if not remembers:
        monkeypatch.setattr(Reactor, "_due", forgets)
    bell = f"again-{remembers}"
    soon = datetime.now(UTC) + timedelta(seconds=3)
    before = asked(bells)
    with Trading(bells, belfry, parts=PARTS) as trading:
        trading.client.send(Wind(bell=bell, at=soon), timeout=240.0)
        wait_until(lambda: len(due(bells).get(bell, [])) > 1 or remembers, "to be due again")
        wait_until(lambda: rung(bells)[bell] > 0, "the bell")
    doubled = [id_ for id_, count in (asked(bells) - before).items() if count > 1]
    assert bool(doubled) is not remembers
    assert all(record.time >= soon.timestamp() * 1000 for record in due(bells)[bell]), "none too early"


OLD = datetime(2017, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("knows", [True, False])
def test_loading_one_category_before_another_fires_no_timer_before_what_cancels_it(
    settings: KafkaSettings, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin goes by the wall clock where nothing has come yet, and drops what was paid."""
    monkeypatch.setattr(log_time, "SILENCE", timedelta(hours=1))
    if not knows:
        monkeypatch.setattr(log_time, "LOAD", timedelta.max)
    numbers = range(60) if knows else range(60, 120)
    placed = {f"old-{number}": OLD + number * 2 * PATIENCE for number in numbers}
    paid = [order for number, order in enumerate(placed) if number % 5]
    with Trading(settings) as trading:
        places = [Place(order=order, product=order, at=at) for order, at in placed.items()]
        trading.client.send_many(places, times=list(placed.values()), timeout=240.0)
        wait_until(lambda: len(trading.events("stock")) >= len(placed), "every order to be seen")
        if not knows:
            wait_until(
                lambda: any(Dropped(order=o, why="not paid in time") in trading.events("orders") for o in paid),
                "a drop",
            )
        pays = [Pay(order=order) for order in paid]
        trading.client.send_many(pays, times=[placed[order] + PATIENCE / 2 for order in paid], timeout=240.0)
        if knows:
            for order in paid:
                trading.await_event("orders", Confirmed(order=order))
            monkeypatch.setattr(log_time, "SILENCE", timedelta(seconds=1))
            for order in placed.keys() - paid:
                trading.await_event("orders", Dropped(order=order, why="not paid in time"))
        ends = Counter(event.order for event in trading.events("orders") if isinstance(event, Confirmed | Dropped))
        dropped = {event.order for event in trading.events("orders") if isinstance(event, Dropped)}
    if knows:
        assert dropped == placed.keys() - paid
        assert ends == Counter(placed.keys())
    else:
        assert dropped & set(paid)
