"""A broker with the topics of the trade, and the command line on it."""

from __future__ import annotations

import pytest

from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.cli.shell import Typing, typing_with
from tests.domains.trade import app
from tests.servers import Addresses, patient
from tests.waiting import WAIT_SECONDS


@pytest.fixture(scope="module")
def settings(empty_servers: Addresses) -> KafkaSettings:
    """How to reach a broker with the topics of the trade, which allows short sessions."""
    settings = patient(empty_servers.kafka)
    ensure(app, settings)
    return settings


@pytest.fixture(autouse=True)
def _patient_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is typed in this process waits for a broker that stands still for a while."""
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", str(WAIT_SECONDS))


@pytest.fixture
def typed(settings: KafkaSettings, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types a command."""
    return typing_with(capsys, "--kafka", settings.bootstrap_servers)
