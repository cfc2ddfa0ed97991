"""An input that the broker refuses ends the router, and what waits behind it is not written either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from leftfold import names
from leftfold.errors import InfrastructureError
from leftfold.faust import route, routing
from leftfold.faust.sending import Sender
from leftfold.kafka.settings import KafkaSettings
from leftfold.partitioner import partition_of
from tests.core.trade import Placed, app
from tests.process.trading import committed
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAVY, LIMIT, DEFAULT, BEHIND = 400_000, 300_000, 1_048_588, 500


def limit(settings: KafkaSettings, most: int) -> None:
    """Says how heavy a batch of inputs may be."""
    admin = AdminClient(settings.librdkafka())
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, "checkout.commands", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([topic]).values():
        future.result(20)


def write(settings: KafkaSettings, order: str) -> None:
    """A heavy event of an order, and light ones behind it."""
    producer = Producer({**settings.librdkafka(), "transactional.id": "planted"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(1 + BEHIND):
        product = "x" * HEAVY if not number else "p"
        told = {"ce_type": "orders.Placed.v1", "ce_id": f"{order}-{number}", "ce_time": "2026-01-01T00:00:00Z"}
        headers: Any = [(name, value.encode()) for name, value in told.items()]
        body = Placed(order=order, product=product, at=NOW).model_dump_json().encode()
        home = partition_of(order.encode(), app.partitions)
        producer.produce(names.events("orders"), body, order.encode(), home, headers=headers)
    producer.commit_transaction(30)


def weights(settings: KafkaSettings, order: str) -> list[bool]:
    """Which inputs of an order are the heavy one, as they stand in the topic."""
    records = committed(settings, "checkout.commands")
    return [len(r.value or b"") > HEAVY for r in records if r.key == order.encode()]


@contextmanager
def routed(settings: KafkaSettings) -> Iterator[list[BaseException]]:
    """A router at work, and what it failed of."""
    stop, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            route(app, "checkout", settings.aiokafka(), app.partitions, stop, lambda what, details: None)
        except BaseException as error:  # whatever it is, the test looks at it
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(60.0)
        assert not thread.is_alive(), "the router does not end"


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_waits_behind_a_refused_input_is_not_written_before_it(
    settings: KafkaSettings, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbered batches do not prevent it: of a producer that it does not know yet a broker takes any number.

    The twin writes what waits; an instance then takes the refused input for something that was there.
    """
    monkeypatch.setattr(routing, "_TICK_SECONDS", 3.0)  # nothing else makes the producer known before
    if not gives_up:
        monkeypatch.setattr(Sender, "_give_up", lambda self, failure: None)
    order = f"refused-{gives_up}"
    limit(settings, LIMIT)
    write(settings, order)
    for _ in range(2):
        with routed(settings) as failures:
            wait_until(lambda: bool(failures), "the router to end")  # called at once
        assert isinstance(failures[0], InfrastructureError)
        assert "MessageSizeTooLarge" in str(failures[0])
    limit(settings, DEFAULT)
    with routed(settings) as failures:
        wait_until(lambda: not failures and any(weights(settings, order)), lambda: f"the first: {failures}")
        wait_until(lambda: not failures and len(weights(settings, order)) > BEHIND, lambda: f"the rest: {failures}")
    assert weights(settings, order)[0] is gives_up
