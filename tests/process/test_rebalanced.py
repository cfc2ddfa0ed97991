"""A second worker of a process comes and goes: whoever gets a partition back knows what was done there meanwhile."""

from __future__ import annotations

import json
import signal
from collections import Counter
from datetime import UTC, datetime

import pytest

from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.codec import header
from leftfold.ports.protocols import StateStore
from tests.domains.trade import Confirmed, Pay, Place
from tests.process.child import Child
from tests.process.children import StartChild
from tests.process.effects import inputs, states
from tests.process.trading import Trading
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]


def keep_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers go on with what they knew of a partition when it was taken from them."""
    hold, drop, kept = ProcessManagerProcessor.hold, ProcessManagerProcessor.drop, dict[tuple[int, int], StateStore]()

    def careless_drop(self: ProcessManagerProcessor, partition: int) -> None:
        if partition in self.held:
            kept[id(self), partition] = self.held[partition].store
        drop(self, partition)

    def careless_hold(self: ProcessManagerProcessor, partition: int, store: StateStore, *, end: int) -> None:
        hold(self, partition, kept.get((id(self), partition), store), end=end)

    monkeypatch.setattr(ProcessManagerProcessor, "drop", careless_drop)
    monkeypatch.setattr(ProcessManagerProcessor, "hold", careless_hold)


def place(trading: Trading, *orders: str) -> None:
    """Orders that the process knows to be reserved."""
    for order in orders:
        trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)

    def known() -> bool:
        found = states(trading.settings)
        return all(order in found and json.loads(found[order])["state"]["reserved"] for order in orders)

    wait_until(known, "the orders to be reserved")


def pay(trading: Trading, *orders: str, times: int) -> None:
    """Pays for orders, until that has reached the inputs of the process."""

    def paid() -> Counter[str]:
        kinds = ((header(r.headers, "ce_type"), (r.key or b"").decode()) for r in inputs(trading.settings))
        return Counter(key for kind, key in kinds if kind == b"payments.Paid.v1")

    for order in orders:
        trading.client.send(Pay(order=order), timeout=240.0)
    wait_until(lambda: all(paid()[order] >= times for order in orders), "the payments to be routed")


def confirmed(trading: Trading) -> Counter[str]:
    """How often each order was confirmed."""
    return Counter(event.order for event in trading.events("orders") if isinstance(event, Confirmed))


@pytest.mark.parametrize("restores", [True, False])
def test_what_another_worker_has_ended_stays_ended_when_its_partition_comes_back(
    settings: KafkaSettings, start: StartChild, restores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin goes on with what it knew before."""
    if not restores:
        keep_what_is_dropped(monkeypatch)
    orders, last = [[f"{restores}-{kind}-{n}" for n in range(12)] for kind in ("moved", "last")]
    with Trading(settings) as trading:
        place(trading, *orders)
        other = start(Child(settings.bootstrap_servers, "checkout"))
        wait_until(lambda: len(other.serves) > 0, lambda: f"partitions to move: {other}")
        pay(trading, *orders, times=1)
        wait_until(lambda: all(confirmed(trading)[order] for order in orders), "all to be confirmed")
        moved = {order for order in orders if partition_of(order.encode(), 4) in other.serves}
        other.signal(signal.SIGTERM)
        wait_until(lambda: other.code is not None, lambda: f"{other}")
        wait_until(trading.serves_all, lambda: f"partitions to come back: {trading.reports[-5:]}")
        pay(trading, *orders, times=2)
        place(trading, *last)
        pay(trading, *last, times=1)
        wait_until(lambda: all(confirmed(trading)[order] for order in last), "those behind to be confirmed")
        found = confirmed(trading)
    assert moved
    assert {order for order in orders if found[order] > 1} == (set() if restores else moved)
