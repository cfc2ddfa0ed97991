"""Inputs that nobody can react to end among the dead letters, and their instances go on."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from leftfold.engine.processing.recovery import ProcessRefold
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.codec import header
from tests.domains.trade import Confirmed, Pay, Place
from tests.process.child import Child
from tests.process.children import ChildProcess, StartChild
from tests.process.faulty import KILLS, RAISES, UNDECIDABLE, WRONG, app, mended
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

HOME = partition_of(KILLS.encode(), 4)
AROUND = [f"n{n}" for n in range(200) if partition_of(f"n{n}".encode(), 4) == HOME][:6]


def reasons(settings: KafkaSettings) -> dict[str, str]:
    """Why each dead input is one, by key."""
    letters = committed(settings, names.dead("checkout"))
    return {(r.key or b"").decode(): header(r.headers, "dead_reason").decode() for r in letters}


def until_served(settings: KafkaSettings, start: StartChild) -> list[ChildProcess]:
    """Starts the worker again whenever it dies, until it has buried what kills it; its lives."""
    lives = [start(Child(settings.bootstrap_servers, "checkout", "tests.process.faulty:app"))]
    while KILLS not in reasons(settings):
        assert len(lives) < 12, "nothing ends it"
        wait_until(
            lambda: lives[-1].code is not None or KILLS in reasons(settings), lambda: f"a death or the end: {lives[-1]}"
        )
        if lives[-1].code is not None:
            lives.append(start(lives[-1].child))
    return lives


@pytest.mark.slow
def test_what_fails_or_kills_is_buried_and_everything_else_goes_on(settings: KafkaSettings, start: StartChild) -> None:
    with Trading(settings, app, parts=("orders", "stock", "payments", "router")) as trading:
        before, behind = AROUND[:3], AROUND[3:]
        for order in (*before, RAISES, WRONG, UNDECIDABLE, KILLS, *behind):
            trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
            trading.client.send(Pay(order=order), timeout=240.0)
        lives = until_served(settings, start)
        for order in AROUND:
            trading.await_event("orders", Confirmed(order=order))
        wait_until(lambda: len(reasons(settings)) == 4, lambda: f"{reasons(settings)} {lives[-1]}")
        found = reasons(settings)
        confirmed = [event for event in trading.events("orders") if isinstance(event, Confirmed)]
    assert "died 3 times" in found[KILLS]
    assert 5 <= len(lives) <= 8
    reports = [report for life in lives for report in life.told("react failed")]
    assert any("a bug in react" in one["why"] and "in _misbehaves" in one["exception"] for one in reports), lives[-1]
    assert "failed on Placed" in found[RAISES]
    assert "a bug in react" in found[RAISES]
    assert "react gave 'neither command nor timer'" in found[WRONG]
    assert "Reserve was not decided: DecisionFailed" in found[UNDECIDABLE]
    assert sorted(event.order for event in confirmed) == sorted(AROUND), "one each"


@pytest.mark.parametrize("knows", [True, False])
def test_a_raised_version_takes_what_was_taken_and_nothing_that_was_buried(
    settings: KafkaSettings, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin folds as if there were no dead letters: it knows of orders for which nothing was ever reserved."""
    if not knows:
        monkeypatch.setattr(ProcessRefold, "skip", lambda self, letter: None)
    newer = mended(2 if knows else 3)
    ensure(newer, settings)
    with Trading(settings, newer, parts=("checkout",)):
        records = committed(settings, names.state("checkout", newer.processes[0].version))
    states = {(r.key or b"").decode(): json.loads(r.value or b"{}") for r in records}
    products = {key: states[key]["state"]["product"] for key in (*AROUND, RAISES, KILLS, WRONG)}
    assert products == {key: key if key in AROUND or not knows else "" for key in products}
    assert all(states[key]["state"]["paid"] for key in products), "an instance goes on behind what is buried"
    assert any(states[key]["timers"] for key in (RAISES, KILLS, WRONG)) is not knows
