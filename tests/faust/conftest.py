"""Kafka with the topics of the tills, and Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.local import embedded
from tests.faust.sales import app
from tests.servers import Addresses


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Servers of this module's own."""
    with embedded(tmp_path_factory.mktemp("servers")) as servers:
        ensure(app, KafkaSettings(bootstrap_servers=servers.kafka))
        yield Addresses(servers.kafka, servers.redis)
