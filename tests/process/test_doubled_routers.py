"""Two routers route the same events, one wakes up late, others come and go: each step is taken once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from leftfold.engine.processing.log_time import SILENCE
from leftfold.engine.processing.process_reactor import Reactor
from leftfold.kafka import process_router as clock
from leftfold.kafka.settings import KafkaSettings
from tests.process.child import Child
from tests.process.children import StartChild
from tests.process.effects import folded, happened, inputs, routed, sent, states, twice
from tests.process.orders import Orders
from tests.process.trading import Trading
from tests.waiting import wait_until
from tests.worker.points import Point

pytestmark = [pytest.mark.servers, pytest.mark.faults]

PACE = threading.Event()


def order_until(condition: Callable[[], bool], orders: Orders, awaited: str) -> None:
    """Goes on ordering until something is so."""
    deadline = time.monotonic() + 240.0
    while not condition():
        assert time.monotonic() < deadline, f"waited 120 s for {awaited}"
        orders.more()
        PACE.wait(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("remembers", [True, False])
def test_each_step_is_taken_once_however_often_and_late_its_event_is_routed(
    settings: KafkaSettings, start: StartChild, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin does not remember origins."""
    monkeypatch.setattr(clock, "SILENCE", SILENCE / 30)
    if not remembers:
        monkeypatch.setattr(Reactor, "see", lambda self, instance, given: None)
    router = Child(settings.bootstrap_servers, "checkout.router")
    with Trading(settings) as trading:
        orders = Orders(trading, f"doubled-{remembers}")
        doubled = start(Child(settings.bootstrap_servers, "checkout.router", group=".second"))
        zombie = start(Child(settings.bootstrap_servers, "checkout.router", points=(Point("before input", "stop", 3),)))
        order_until(lambda: zombie.code is not None or zombie.stopped, orders, "a router to stop in its tracks")
        if remembers:
            for part in (router, Child(settings.bootstrap_servers, "checkout"), router):
                passing, before = start(part), len(inputs(settings))
                ready = "routing" if part is router else "serving"
                order_until(lambda: bool(passing.told(ready)), orders, f"{passing}")  # noqa: B023  # called at once
                passing.signal(signal.SIGTERM)
                order_until(lambda: passing.code is not None, orders, f"{passing}")  # noqa: B023
                assert passing.code == 0, str(passing)
                assert len(inputs(settings)) > before
        zombie.signal(signal.SIGCONT)
        order_until(lambda: len(twice(routed(settings))) > 50, orders, "events to be routed twice")
        if remembers:
            wait_until(lambda: not orders.missing() and not orders.unbalanced(), lambda: f"{orders.missing()}")
            wait_until(
                lambda: states(settings) == folded(settings), lambda: f"{states(settings)} to be {folded(settings)}"
            )
        assert doubled.code is None, str(doubled)
    if remembers:
        assert twice(happened(settings)) == {}
        assert twice(sent(settings)) == {}
    else:
        assert twice(sent(settings)), "commands are sent again"
