"""Routers and workers are killed at each of their points while others go on: each step is taken once, and every saga
comes to its end: bought, or given back.
"""

from __future__ import annotations

import signal
import threading
import time
from datetime import UTC, datetime
from itertools import count, zip_longest

import pytest

from leftfold.engine.processing.log_time import SILENCE
from leftfold.engine.processing.process_reactor import Reactor
from leftfold.kafka import process_router as clock
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.codec import header
from tests.domains.trade import Place
from tests.process.child import Child
from tests.process.children import ChildProcess, StartChild
from tests.process.effects import folded, happened, routed, sent, states, twice
from tests.process.orders import Orders
from tests.process.points import ANSWERING, ROUTER, WORKER
from tests.process.trading import Trading, committed
from tests.waiting import wait_until
from tests.worker.points import Point

pytestmark = [pytest.mark.servers, pytest.mark.faults]

PACE = threading.Event()
PARTS = ("checkout", "checkout", "checkout.router", "checkout.router", "stock")


def meet(doomed: list[ChildProcess], orders: Orders, trading: Trading) -> None:
    """Goes on ordering until each has met its fate."""
    deadline = time.monotonic() + 240.0
    while any(child.code is None for child in doomed):
        assert time.monotonic() < deadline, "\n".join(map(str, doomed))
        orders.more()
        PACE.wait(0.05)
    for child in doomed:
        assert child.code == -signal.SIGKILL, str(child)
        assert [told["at"] for told in child.told("point")] == [child.child.points[0].at]
    # Three deaths beside one input, with nothing taken in between, would have it buried.
    wait_until(trading.serves_all, lambda: f"others to take over: {trading.reports[-12:]} {trading.failures}")


def buried(settings: KafkaSettings) -> list[tuple[bytes, bytes]]:
    """What was dead-lettered, and why."""
    letters = committed(settings, names.dead("checkout"))
    return [(record.key or b"", header(record.headers, "dead_reason")) for record in letters]


@pytest.mark.slow
def test_each_step_is_taken_once_whoever_is_killed_wherever(
    settings: KafkaSettings, start: StartChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SILENCE", SILENCE / 30)
    with Trading(settings) as trading:
        orders = Orders(trading, "killed")
        for points in zip_longest(WORKER[::2], WORKER[1::2], ROUTER[::2], ROUTER[1::2], ANSWERING):
            planned = [(part, Point(at)) for part, at in zip(PARTS, points, strict=True) if at]
            doomed = [start(Child(settings.bootstrap_servers, part, points=(point,))) for part, point in planned]
            meet(doomed, orders, trading)
        wait_until(
            lambda: not orders.missing() and not orders.unbalanced(),
            lambda: f"{orders.missing()} {orders.unbalanced()}: {trading.failures} {buried(settings)}",
        )
        wait_until(lambda: states(settings) == folded(settings), lambda: f"{states(settings)} to be {folded(settings)}")
    assert buried(settings) == []
    assert twice(happened(settings)) == {}
    assert twice(sent(settings)) == {}
    assert twice(routed(settings)), "nothing was routed twice, so nothing was shown"


@pytest.mark.parametrize("remembers", [True, False])
def test_a_router_killed_behind_a_write_has_it_done_twice_where_origins_are_not_remembered(
    settings: KafkaSettings, start: StartChild, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: inputs that are there twice lead to commands that are there twice."""
    if not remembers:
        monkeypatch.setattr(Reactor, "see", lambda self, instance, given: None)
    inputs, commands = len(twice(routed(settings))), len(twice(sent(settings)))
    with Trading(settings) as trading:
        doomed = start(Child(settings.bootstrap_servers, "checkout.router", points=(Point("after input", nth=3),)))
        number, deadline = count(), time.monotonic() + 240.0
        while doomed.code is None:
            assert time.monotonic() < deadline, str(doomed)
            order = f"again-{remembers}-{next(number)}"
            trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
            PACE.wait(0.05)
        wait_until(lambda: len(twice(routed(settings))) > inputs, lambda: f"an input again: {doomed}")
        last = f"last-{remembers}"
        trading.client.send(Place(order=last, product=last, at=datetime.now(UTC)), timeout=240.0)
        if not remembers:
            wait_until(lambda: len(twice(sent(settings))) > commands, "a command again")
    assert (len(twice(sent(settings))) == commands) is remembers
