"""Kafka with the topics of the tills, and Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leftfold.kafka.administration.topics import ensure
from tests.faust.sales import app
from tests.faust.tills import Tills
from tests.servers import Addresses, patient

LEFT = (
    "ignore:Exception ignored in. <"
    "(socket.socket|function (AIOKafkaConnection|StreamWriter|_SelectorTransport).__del__)"
    ":pytest.PytestUnraisableExceptionWarning"
)
"""A Faust that is stopped while it starts leaves connections of aiokafka open, which any later test may collect."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has what Faust leaves fail no test of this folder, whichever collects it."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings(LEFT))


@pytest.fixture(scope="module")
def addresses(empty_servers: Addresses) -> Addresses:
    """Servers with the topics of the tills and nothing else."""
    ensure(app, patient(empty_servers.kafka))
    return empty_servers


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    """Some sales that are written."""
    tills = Tills(addresses)
    tills.write(tills.sales(40))
    yield tills
    tills.store.close()
