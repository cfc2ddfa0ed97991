"""What a process knows when it is begun again, with newer code too, and when partitions move and come back."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold import App
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place, Reserved, app, checkout
from tests.process.trading import Trading, inputs, raised, states
from tests.threads import working
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

SECOND = timedelta(seconds=1)


def forget_time(settings: KafkaSettings) -> None:
    """Deletes what routers have said of time, as the topic does by itself after ten minutes."""
    with ClusterAdmin(settings) as cluster:
        end = cluster.ends(["checkout.time"]).next_offset("checkout.time", 0)
    place = TopicPartition("checkout.time", 0, end)
    admin = AdminClient(settings.librdkafka())  # it must live until it is answered
    for future in admin.delete_records([place]).values():
        future.result(240.0)


@pytest.mark.parametrize("begun", [lambda: app, raised], ids=["same code", "raised version"])
def test_a_process_continues_where_it_was_and_its_timers_fire_once(
    settings: KafkaSettings, begun: Callable[[], App], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(clock, "SILENCE", 3 * SECOND)  # nothing comes after the second start that tells the time
    name = request.node.callspec.id.replace(" ", "-")
    late, bought = f"late-{name}", f"bought-{name}"
    due = datetime.now(UTC) + 15 * SECOND
    with Trading(settings) as trading:
        for order in (late, bought):
            at = due - PATIENCE if order == late else datetime.now(UTC)
            trading.client.send(Place(order=order, product=order, at=at), timeout=240.0)
            trading.await_event("stock", Reserved(product=order, order=order))
    forget_time(settings)
    other = begun()
    ensure(other, settings)
    with Trading(settings, other) as trading:
        trading.client.send(Pay(order=bought), timeout=240.0)
        trading.await_event("orders", Confirmed(order=bought))
        assert Dropped(order=late, why="not paid in time") not in trading.events("orders") or datetime.now(UTC) >= due
        trading.await_event("orders", Dropped(order=late, why="not paid in time"))
        assert datetime.now(UTC) >= due
        ends = [event for event in trading.events("orders") if isinstance(event, Confirmed | Dropped)]
    assert ends.count(Dropped(order=late, why="not paid in time")) == 1
    assert ends.count(Confirmed(order=bought)) == 1
    assert checkout.version == 1


def keep_what_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers go on with what they knew of a partition when it was taken from them."""
    hold, drop = ProcessManagerProcessor.hold, ProcessManagerProcessor.drop
    kept: dict[tuple[int, int], MutableMapping[str, bytes]] = {}

    def careless_drop(self: ProcessManagerProcessor, partition: int) -> None:
        if partition in self.held:
            kept[id(self), partition] = self.held[partition].store
        drop(self, partition)

    def careless_hold(
        self: ProcessManagerProcessor, partition: int, store: MutableMapping[str, bytes], *, end: int
    ) -> None:
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
    settings: KafkaSettings, restores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin continues with what it knew before."""
    if not restores:
        keep_what_is_dropped(monkeypatch)
    moving, last = [[f"{restores}-{kind}-{n}" for n in range(12)] for kind in ("moved", "last")]
    others: list[Worker] = []

    def work(stop: threading.Event) -> None:
        others.append(Worker(app, "checkout", KafkaClientSupplier(settings), stop=stop))
        others[0].run()

    with Trading(settings) as trading:
        place(trading, *moving)
        with working(work) as failures:
            wait_until(lambda: bool(failures or (others and others[0].served)), "partitions to move")
            pay(trading, *moving, times=1)
            wait_until(lambda: all(confirmed(trading)[order] for order in moving), "all to be confirmed")
            moved = {order for order in moving if partition_of(order.encode(), 4) in others[0].served}
        assert not failures
        wait_until(trading.serves_all, lambda: f"partitions to come back: {trading.reports[-5:]}")
        pay(trading, *moving, times=2)
        place(trading, *last)
        pay(trading, *last, times=1)
        wait_until(lambda: all(confirmed(trading)[order] for order in last), "those behind to be confirmed")
        found = confirmed(trading)
    assert moved
    assert {order for order in moving if found[order] > 1} == (set() if restores else moved)
