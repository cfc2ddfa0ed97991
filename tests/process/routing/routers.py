"""Routers without workers, and the events of orders that they route."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from leftfold import App
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from tests.domains.trade import Placed, app
from tests.planted import as_written, write
from tests.settled import committed
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


def plant(settings: KafkaSettings, orders: Iterable[tuple[str, str]], *, broken: bool = False) -> None:
    """Events of orders that are placed, each an order and a product, in one transaction of the test's own producer.

    Args:
        broken: whether the events lack all fields.
    """
    records = [
        as_written(Placed(order=order, product=product, at=NOW), app.partitions, ce_id=f"id-{order}-{n}".encode())
        for n, (order, product) in enumerate(orders)
    ]
    write(settings, EVENTS, [out._replace(value=b"{}") for out in records] if broken else records)


def member_with(**settings: Any) -> Callable[..., GroupMember]:
    """Makes members of groups with other settings."""

    def made(config: Mapping[str, Any], *rest: Any, **options: Any) -> GroupMember:
        return GroupMember({**config, **settings}, *rest, **options)

    return made
