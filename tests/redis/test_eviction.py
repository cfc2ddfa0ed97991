"""A Redis that drops keys by itself is refused before a view is written into it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from leftfold.cli.main import run
from leftfold.errors import ConfigurationError
from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings, refuse_eviction
from leftfold.runtime.workers.view_workers import follow
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def evicting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that evicts keys of any kind when its memory is full, and lets CONFIG be used by no client."""
    server = RedisServer(
        tmp_path_factory.mktemp("evicting") / "data",
        options={"maxmemory-policy": "allkeys-lru", "rename-command CONFIG": '""'},
    )
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_server_that_keeps_keys_without_a_time_to_live_is_well(server: RedisServer, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
    assert refuse_eviction(server.settings) == policy


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_one_that_evicts_any_key_is_refused(server: RedisServer, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)
    with pytest.raises(
        ConfigurationError, match=f"has maxmemory-policy {policy}, .*maxmemory-policy noeviction"
    ) as told:
        refuse_eviction(server.settings)
    assert f"type: redis-cli -h {server.settings.host} -p {server.settings.port} config set" in str(told.value)


def test_where_config_is_forbidden_info_says_it(evicting: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match="allkeys-lru"):
        refuse_eviction(evicting.settings)


def test_a_server_that_says_neither_is_not_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "silent", "reset", "on", ">x", "+@all", "-config", "-info")
    assert refuse_eviction(RedisSettings(url=f"redis://silent:x@127.0.0.1:{server.port}/0")) == ""


def test_run_refuses_it_before_anything_starts(
    evicting: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    words = ["run", "--app", "tests.cli.tower:app", "--redis", evicting.settings.url]
    assert run(words) == ConfigurationError.exit_code
    assert "maxmemory-policy allkeys-lru, which drops rows of views unnoticed" in capsys.readouterr().err


def test_doctor_says_that_it_is_wrong(
    evicting: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", raising=False)
    assert run(["doctor", "--json", "--app", "tests.cli.tower:app", "--redis", evicting.settings.url]) == 1
    found = {told["about"]: told for told in map(json.loads, capsys.readouterr().out.splitlines())}
    assert not found["redis"]["well"]
    assert "maxmemory-policy allkeys-lru, which drops rows of views unnoticed" in found["redis"]["message"]


def test_a_tail_refuses_it_whenever_it_connects(evicting: RedisServer) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="allkeys-lru"):
        follow([], kafka, evicting.settings, threading.Event(), lambda what, details: None, options={})
