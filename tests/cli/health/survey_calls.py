"""The calls of a survey to brokers and Redis, counted for tests and benchmarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.views.generations import open_generation, promote_first
from leftfold.kafka import bulk_log, log_reader
from leftfold.kafka.administration import cluster, groups, states
from leftfold.kafka.administration.topics import ensure
from leftfold.model import keys as names
from leftfold.ports.flush import Phase
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.sync import RoutedClient
from leftfold.runtime.operations.survey import Survey
from tests.domains.observed import app_with, order_status
from tests.servers import Addresses, patient

__all__ = ["surveyed", "write_records"]

SECONDS = 240.0
# How often a reader asks again for records of partitions that did not answer at once is a matter of the machine.
ASKED = {
    "AdminClient": ("list_topics", "describe_topics", "list_offsets", "list_groups", "describe_configs"),
    "Consumer": ("__init__", "committed", "get_watermark_offsets"),
}
CLIENTS = [(cluster, "AdminClient"), *((module, "Consumer") for module in (bulk_log, groups, log_reader, states))]
"""Where a survey may make clients."""
WRITTEN = [
    names.commands("orders"),
    names.commands("checkout"),
    names.events("orders"),
    names.state("orders", 1),
    names.dead("orders"),
]


def _counted(made: type[Any], asked: tuple[str, ...], calls: Counter[str]) -> type[Any]:
    """A class whose calls are counted, and made."""

    def counted(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            calls[f"{made.__name__}.{name}"] += 1
            return getattr(made, name)(self, *arguments, **more)

        return call

    return type(made.__name__, (made,), {name: counted(name) for name in asked})


def surveyed(servers: Addresses, partitions: int) -> tuple[Counter[str], list[Any]]:
    """The calls of one survey of an App with so many partitions, and its rows."""
    calls = Counter[str]()
    with pytest.MonkeyPatch.context() as patched:
        for module, name in CLIENTS:
            patched.setattr(module, name, _counted(getattr(module, name), ASKED[name], calls))
        execute = RoutedClient.execute

        def counted(self: Any, *arguments: Any, **more: Any) -> Any:
            calls["redis"] += 1
            return execute(self, *arguments, **more)

        patched.setattr(RoutedClient, "execute", counted)
        rows = list(Survey(servers.kafka, servers.redis).members(app_with(partitions)))
    return calls, rows


def write_records(servers: Addresses, partitions: int) -> None:
    """Writes a record that nothing has processed into each partition of every topic, and makes a view live."""
    ensure(app_with(partitions), patient(servers.kafka))
    producer = Producer({"bootstrap.servers": servers.kafka})
    for topic in WRITTEN:
        for partition in range(partitions):
            producer.produce(topic, b"{}", b"k", partition)
    assert producer.flush(SECONDS) == 0
    store = RedisViewStore(RedisSettings(url=servers.redis))
    topics = {names.events("orders"): partitions}
    promote_first(store, open_generation(store, order_status, topics, Phase.SEALED, partitions))
    store.close()
