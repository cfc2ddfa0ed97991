"""What a process knows when it is begun again, with newer code too, and when nothing comes any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold import App
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.domains.trade import (
    PATIENCE,
    Confirmed,
    Dropped,
    Pay,
    Place,
    Reserved,
    app,
    checkout,
    checkout_with,
    orders,
    payments,
    stock,
)
from tests.process.trading import Trading

pytestmark = [pytest.mark.servers, pytest.mark.faults]
SECOND = timedelta(seconds=1)


def raised(version: int = 2) -> App:
    """The same App, in which the process has another version."""
    process = checkout_with(version=version)
    return App("trade", partitions=app.partitions, deciders=[orders, stock, payments], processes=[process])


def forget_time(settings: KafkaSettings) -> None:
    """Deletes what routers have said of time, as the topic does by itself after ten minutes."""
    with ClusterAdmin(settings) as cluster:
        end = cluster.ends(["checkout.time"]).next_offset("checkout.time", 0)
    place = TopicPartition("checkout.time", 0, end)
    admin = AdminClient(settings.librdkafka())  # it must live until it is answered
    for future in admin.delete_records([place]).values():
        future.result(240.0)


@pytest.mark.parametrize("begun", [lambda: app, raised], ids=["same code", "raised version"])
def test_a_process_goes_on_where_it_was_and_its_timers_fire_once(
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
