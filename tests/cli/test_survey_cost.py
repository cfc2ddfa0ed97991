"""How many calls to brokers and Redis a survey makes: as many for twelve partitions as for one."""

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
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.flush import Phase
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection import server
from leftfold.runtime.operations.survey import Survey
from tests.domains.observed import app_with, order_status
from tests.servers import Addresses, emptied

pytestmark = pytest.mark.servers

SECONDS = 240.0
ASKED = {
    "AdminClient": ("list_topics", "describe_topics", "list_offsets", "list_groups", "describe_configs"),
    "Consumer": ("committed", "assign", "get_watermark_offsets", "list_topics"),
}
CLIENTS = [
    (cluster, "AdminClient"),
    *((module, "Consumer") for module in (bulk_log, groups, log_reader, states)),
]
"""Where a survey may make clients."""
WRITTEN = [
    names.commands("orders"),
    names.commands("checkout"),
    names.events("orders"),
    names.state("orders", 1),
    names.dead("orders"),
]
ROUNDS = 3
"""How often a reader may ask again for the first records of partitions that did not answer at once."""


def _counted(made: type[Any], asked: tuple[str, ...], calls: Counter[str]) -> type[Any]:
    """A class whose calls are counted, and made."""

    def counted(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            calls[f"{made.__name__}.{name}"] += 1
            return getattr(made, name)(self, *arguments, **more)

        return call

    return type(made.__name__, (made,), {name: counted(name) for name in asked})


def _surveyed(servers: Addresses, partitions: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], list[Any]]:
    """The calls of one survey, and its rows."""
    calls = Counter[str]()
    with monkeypatch.context() as patched:
        for module, name in CLIENTS:
            patched.setattr(module, name, _counted(getattr(module, name), ASKED[name], calls))
        execute = server._Server.execute

        def counted(self: Any, *arguments: Any, **more: Any) -> Any:
            calls["redis"] += 1
            return execute(self, *arguments, **more)

        patched.setattr(server._Server, "execute", counted)
        rows = list(Survey(servers.kafka, servers.redis).members(app_with(partitions)))
    return calls, rows


def _written(servers: Addresses, partitions: int) -> None:
    """Every topic has a record in each partition that nothing has processed, and a view is live."""
    ensure(app_with(partitions), KafkaSettings(bootstrap_servers=servers.kafka))
    producer = Producer({"bootstrap.servers": servers.kafka})
    for topic in WRITTEN:
        for partition in range(partitions):
            producer.produce(topic, b"{}", b"k", partition)
    assert producer.flush(SECONDS) == 0
    store = RedisViewStore(RedisSettings(url=servers.redis))
    topics = {names.events("orders"): partitions}
    promote_first(store, open_generation(store, order_status, topics, Phase.SEALED, partitions))
    store.close()


def test_a_survey_makes_as_many_calls_for_many_partitions_as_for_one(
    servers: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, Counter[str]] = {}
    for partitions in (1, 12):
        _written(emptied(servers), partitions)
        calls, rows = _surveyed(servers, partitions, monkeypatch)
        found[partitions] = calls
        (orders,) = [row for row in rows if (row["kind"], row["name"]) == ("decider", "orders")]
        (view,) = [row for row in rows if row["kind"] == "view"]
        assert orders["lag"] == view["lag"] == partitions
        assert min(orders["behind"], view["behind"]) > 0
    readers = {"Consumer.assign", "Consumer.list_topics"}
    asked = {count: {name: calls[name] for name in calls if name not in readers} for count, calls in found.items()}
    assert asked[12] == asked[1]
    assert asked[1]["redis"] > 0
    assert not asked[12].get("Consumer.get_watermark_offsets")
    assert all(found[12][name] <= found[1][name] + ROUNDS for name in readers), found
