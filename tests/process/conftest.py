"""A broker with the topics of the trade, and the command line on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from leftfold.cli.main import run
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.cli.shell import Typed
from tests.domains.trade import app
from tests.servers import Addresses

Typing: TypeAlias = Callable[..., Typed]
"""Types a command."""


@pytest.fixture(scope="module")
def settings(empty_servers: Addresses) -> KafkaSettings:
    """How to reach a broker with the topics of the trade, which allows short sessions."""
    settings = KafkaSettings(bootstrap_servers=empty_servers.kafka)
    ensure(app, settings)
    return settings


@pytest.fixture
def typed(settings: KafkaSettings, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types a command."""

    def type_(*words: str) -> Typed:
        capsys.readouterr()
        code = run([*words, "--kafka", settings.bootstrap_servers])
        return Typed(code, *capsys.readouterr())

    return type_
