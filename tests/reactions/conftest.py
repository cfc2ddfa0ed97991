"""A broker with the topics of the visits."""

from __future__ import annotations

import pytest

from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.domains.visits import app_with
from tests.servers import Addresses, patient


@pytest.fixture(scope="module")
def settings(empty_servers: Addresses) -> KafkaSettings:
    """How to reach a broker with the topics of the visits."""
    settings = patient(empty_servers.kafka)
    ensure(app_with(), settings)
    return settings
