"""One broker for all tests of the worker: short sessions, rights, and a second listener for the proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.local import Listener, LocalSettings, embedded
from tests.cli.shell import Typing, typing_with
from tests.free_ports import free_port
from tests.waiting import WAIT_SECONDS
from tests.worker import bank as bank_module
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.processes import Start, WorkerProcess
from tests.worker.proxy import Proxy

HOST = "127.0.0.1"
LATENCY = 0.01
"""Seconds each way between clients at `Broker.distant` and the broker: 20 ms a round trip, as between data centres."""


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, where everybody may do everything that no test forbids."""
    behind, front, far, distant = free_port(), free_port(), free_port(), free_port()
    settings = LocalSettings(
        kafka_listeners=(
            Listener(name="PROXIED", port=behind, advertised_port=front),
            Listener(name="DISTANT", port=far, advertised_port=distant),
        ),
        kafka_properties={
            "group.min.session.timeout.ms": "500",
            "broker.session.timeout.ms": "60000",
            # One that was killed is let in again only once its former session has ended.
            "initial.broker.registration.timeout.ms": "240000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    data = tmp_path_factory.mktemp("broker")
    with embedded(data, settings=settings, want=frozenset({"kafka"})) as servers, Proxy(distant, far, latency=LATENCY):
        yield Broker(servers.kafka, f"{HOST}:{front}", f"{HOST}:{distant}", behind, data)


@pytest.fixture
def bank(broker: Broker) -> Bank:
    """A bank of the test's own."""
    return broker.bank()


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    """A client of the bank."""
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    """A proxy in front of the broker's second listener."""
    with Proxy(int(broker.proxied.rpartition(":")[2]), broker.behind, latency=LATENCY) as proxy:
        yield proxy


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts worker processes, and kills what is left of them in the end."""
    numbers = count(1)
    with ExitStack() as running:
        yield lambda given: running.enter_context(WorkerProcess(given, tmp_path / f"worker{next(numbers)}.jsonl"))


@pytest.fixture
def typed(broker: Broker, bank: Bank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typing:
    """The command line, which knows the bank as its App."""
    monkeypatch.setattr(bank_module, "app", bank.app, raising=False)
    monkeypatch.setenv("LEFTFOLD_APP", "tests.worker.bank:app")
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", str(WAIT_SECONDS))
    return typing_with(capsys, "--kafka", broker.address)
