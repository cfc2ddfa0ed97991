"""Routers without workers, and the events of orders that they route."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

from leftfold import App
from leftfold.kafka.group_member import GroupMember
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.domains.trade import Placed, app
from tests.process.trading import committed
from tests.threads import working

__all__ = ["EVENTS", "NOW", "member_with", "plant", "routed", "routing"]

EVENTS, NOW = names.events("orders"), datetime(2026, 1, 1, tzinfo=UTC)


def routing(
    settings: KafkaSettings, process: str = "checkout", of: App = app, *, skipped: Callable[[], Collection[str]] = tuple
) -> AbstractContextManager[list[BaseException]]:
    """A router at work while the block runs, and what it failed of."""

    def work(stop: threading.Event) -> None:
        ProcessRouter(of, process, settings, stop=stop, report=lambda *reported: None, skipped=skipped).run()

    return working(work)


def routed(settings: KafkaSettings, process: str = "checkout") -> list[str]:
    """The keys of the inputs, as they stand in the topic."""
    return [(record.key or b"").decode() for record in committed(settings, names.commands(process))]


def plant(
    settings: KafkaSettings, orders: Iterable[tuple[str, str]], *, commit: bool = True, broken: bool = False
) -> None:
    """Events of orders that are placed, each an order and a product, in one transaction of the test's own producer.

    Args:
        broken: whether the events lack all fields.
    """
    producer = Producer({**settings.librdkafka(), "transactional.id": "planted"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number, (order, product) in enumerate(orders):
        reported = {"ce_type": "orders.Placed.v1", "ce_id": f"id-{order}-{number}", "ce_time": "2026-01-01T00:00:00Z"}
        headers: Any = [(name, value.encode()) for name, value in reported.items()]
        body = b"{}" if broken else Placed(order=order, product=product, at=NOW).model_dump_json().encode()
        producer.produce(EVENTS, body, order.encode(), partition_of(order.encode(), app.partitions), headers=headers)
    producer.flush(240.0)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def member_with(**settings: Any) -> Callable[..., GroupMember]:
    """Makes members of groups with other settings."""

    def made(config: Mapping[str, Any], *rest: Any, **options: Any) -> GroupMember:
        return GroupMember({**config, **settings}, *rest, **options)

    return made
