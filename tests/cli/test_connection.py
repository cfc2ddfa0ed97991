"""Where the servers are: arguments, then the environment, then what `leftfold up` announced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leftfold import ConfigurationError, InfrastructureError, connect
from leftfold.runtime.connect import kafka_settings, redis_settings
from services.baskets.app import app
from tests.cli.shell import Shell

HERE = {"kafka": "127.0.0.1:1111", "redis": "redis://127.0.0.1:2222/0", "pids": {}}


@pytest.fixture
def announced(place: Path) -> Path:
    (place / ".leftfold").mkdir()
    file = place / ".leftfold" / "servers.json"
    file.write_text(json.dumps(HERE), "utf-8")
    return file


def test_without_any_address_the_command_to_type_is_told(place: Path) -> None:
    with pytest.raises(ConfigurationError) as kafka:
        kafka_settings()
    with pytest.raises(ConfigurationError) as redis:
        redis_settings()
    assert str(kafka.value) == (
        "no Kafka address: start servers with `leftfold up`, or set LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port"
    )
    assert "set LEFTFOLD_REDIS_URL=redis://host:6379/0" in str(redis.value)


def test_announced_servers_are_found_from_below(announced: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(place / "a" / "b")
    assert kafka_settings().bootstrap_servers == "127.0.0.1:1111"
    assert redis_settings().url == "redis://127.0.0.1:2222/0"


def test_another_data_directory_is_asked_instead(
    announced: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("data")
    (other / "servers.json").write_text(json.dumps({**HERE, "kafka": "127.0.0.1:3333"}), "utf-8")
    monkeypatch.setenv("LEFTFOLD_DATA", str(other))
    assert kafka_settings().bootstrap_servers == "127.0.0.1:3333"


def test_the_environment_wins_over_the_announcement(announced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "broker:9092")
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "redis://redis:6379/3")
    assert kafka_settings().bootstrap_servers == "broker:9092"
    assert redis_settings().url == "redis://redis:6379/3"


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "broker:9092")
    monkeypatch.setenv("LEFTFOLD_KAFKA_CLIENT_ID", "till")
    settings = kafka_settings("other:9092")
    assert (settings.bootstrap_servers, settings.client_id) == ("other:9092", "till")
    assert kafka_settings(settings) is settings


def test_a_broken_announcement_is_named(announced: Path) -> None:
    announced.write_text("{", "utf-8")
    with pytest.raises(ConfigurationError, match=r"servers.json cannot be read .* leftfold up"):
        kafka_settings()


def test_a_wrong_setting_is_named_and_its_password_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "http://:hunter2@redis")
    with pytest.raises(ConfigurationError) as caught:
        redis_settings()
    assert "the Redis URL must look like" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["confluent_kafka"] = None
from leftfold import App, connect
connect(App("none"), kafka="127.0.0.1:1").client
"""
    told = Shell(tmp_path).python("-c", script)
    assert "install it: pip install 'leftfold[kafka]'" in told.err


def test_a_closed_connection_says_so(announced: Path) -> None:
    with connect(app) as connection:
        assert connection.views[app.views[0]].view is app.views[0]
    with pytest.raises(InfrastructureError, match="this connection of app baskets is closed"):
        _ = connection.views
