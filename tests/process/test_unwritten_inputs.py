"""An input that the broker refuses ends the router, and what waits behind it is not written either."""

from __future__ import annotations

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

from leftfold.engine.processing.process_wire import MAX_BYTES
from leftfold.errors import InfrastructureError
from leftfold.kafka import input_producer
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from tests.process.routers import plant, routing
from tests.process.trading import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

HEAVY, LIMIT, DEFAULT, BEHIND = 400_000, 300_000, 1_048_588, 500


def limit(settings: KafkaSettings, most: int) -> None:
    """Says how heavy a batch of inputs may be."""
    admin = AdminClient(settings.librdkafka())
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, "checkout.commands", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([topic]).values():
        future.result(240.0)


def write(settings: KafkaSettings, order: str) -> None:
    """A heavy event of an order, and light ones behind it."""
    plant(settings, [(order, "x" * HEAVY), *[(order, "p")] * BEHIND])


def weights(settings: KafkaSettings, order: str) -> list[bool]:
    """Which inputs of an order are the heavy one, as they stand in the topic."""
    records = committed(settings, "checkout.commands")
    return [len(r.value or b"") > HEAVY for r in records if r.key == order.encode()]


def skipping(config: dict[str, Any], **options: Any) -> Producer:
    """A producer that continues behind a record that is refused."""
    return Producer({**config, "enable.gapless.guarantee": False}, **options)


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_waits_behind_a_refused_input_is_not_written_before_it(
    settings: KafkaSettings, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin writes what waits; an instance then takes the refused input for something that was there."""
    monkeypatch.setattr(ProcessRouter, "_max_bytes", lambda self: MAX_BYTES)  # or the heavy one is a dead letter
    if not gives_up:
        monkeypatch.setattr(input_producer, "Producer", skipping)
        monkeypatch.setattr(InputProducer, "close", lambda self: self._producer.flush(30))
    order = f"refused-{gives_up}"
    limit(settings, LIMIT)
    write(settings, order)
    for _ in range(2):
        with routing(settings) as failures:
            wait_until(lambda: bool(failures), "the router to end")  # called at once
        assert isinstance(failures[0], InfrastructureError)
        assert "Message size too large" in str(failures[0])
    limit(settings, DEFAULT)
    with routing(settings) as failures:
        wait_until(lambda: not failures and any(weights(settings, order)), lambda: f"the first: {failures}")
        wait_until(lambda: not failures and len(weights(settings, order)) > BEHIND, lambda: f"the rest: {failures}")
    assert weights(settings, order)[0] is gives_up
