"""A broker with the topics of the visits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.local import embedded
from tests.core.receipts import app_with


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """How to reach a broker of this module's own."""
    with embedded(tmp_path_factory.mktemp("kafka"), want=frozenset({"kafka"})) as servers:
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        ensure(app_with(), settings)
        yield settings
