"""A call that hangs ends its process, since nothing else would."""

from __future__ import annotations

import threading

import pytest

from leftfold.kafka.worker.transactions import Watchdog
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.broker import Broker
from tests.worker.load import Load
from tests.worker.points import Point
from tests.worker.process import Circumstances
from tests.worker.processes import Start
from tests.worker.shop import Haste

pytestmark = pytest.mark.servers


@pytest.mark.faults
@pytest.mark.parametrize("at", ["before flush", "before commit_transaction"])
def test_a_worker_whose_call_hangs_ends_to_be_restarted(broker: Broker, start: Start, at: str) -> None:
    bank = broker.bank()
    hanging = start(Circumstances(broker.distant, bank.name, haste=Haste(call=5.0), points=(Point(at, "hang", 3),)))
    with Load(broker.settings, bank) as load:
        hanging.wait_point()
        assert hanging.wait_end() == 75
        assert "did not return within" in str(hanging)
        start(Circumstances(broker.distant, bank.name)).wait_serving(4)
        load.wait_answered(50)
    assert audit(broker, bank, load.sent) == []


def test_a_hanging_call_without_a_watchdog_hangs_on() -> None:
    expired: list[str] = []
    watchdog, over = Watchdog(lambda what, seconds: expired.append(what)), threading.Event()

    def hang() -> None:
        with watchdog.within(0.1, "a call"):
            over.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    wait_until(lambda: len(expired) > 1, "the watchdog")
    assert thread.is_alive()
    over.set()
    thread.join()
    watchdog.close()


def test_a_call_that_returns_in_time_is_left_alone() -> None:
    expired: list[str] = []
    watchdog = Watchdog(lambda what, seconds: expired.append(what))
    with watchdog.within(60.0, "a quick call"):
        pass
    with watchdog.within(0.1, "a slow call"):
        wait_until(lambda: bool(expired), "the watchdog")
    watchdog.close()
    assert set(expired) == {"a slow call"}
