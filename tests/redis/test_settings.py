"""Settings reach the right server and never show a password."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from leftfold.contracts.buckets import flush_of, mark, new_generation, row
from leftfold.errors import InfrastructureError
from leftfold.redis import RedisSettings, RedisViewStore
from tests.redis.server import RedisServer

SECRET = "s3cr/t@:x"
URL = "redis://app:s3cr%2Ft%40%3Ax@cache.example:6380/3"


def test_a_password_in_the_url_is_moved_out_of_it() -> None:
    settings = RedisSettings(url=URL)
    assert settings.url == "redis://app@cache.example:6380/3"
    assert settings.password is not None
    assert settings.password.get_secret_value() == SECRET
    told = (settings.host, settings.port, settings.database, settings.username, settings.address)
    assert told == ("cache.example", 6380, 3, "app", "cache.example:6380")
    assert "s3cr" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


def test_a_password_of_its_own_wins() -> None:
    settings = RedisSettings(url=URL, password=SecretStr("other"))
    assert settings.password is not None
    assert settings.password.get_secret_value() == "other"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "rediss://:pw@h")
    monkeypatch.setenv("LEFTFOLD_REDIS_TIMEOUT", "3")
    settings = RedisSettings()
    assert (settings.encrypted, settings.port, settings.database, settings.timeout) == (True, 6379, 0, 3.0)
    assert settings.password is not None
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_socket_in_the_file_system_is_an_address() -> None:
    settings = RedisSettings(url="unix:///run/redis.sock?db=2")
    assert (settings.socket_path, settings.database, settings.address) == ("/run/redis.sock", 2, "/run/redis.sock")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@h:6379/0",
        "redis://:s3cr#et@h:6379/0",
        "redis://:s3cret@:6379",
        "redis://:s3cret@h:port/0",
        "redis://:s3cret@h:6379/name",
        "redis://:s3cret@h:6379/0?socket_timeout=3",
        "http://:s3cret@h",
        "unix://",
        "s3cret",
        "",
    ],
)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValidationError, match="must look like redis://") as caught:
        RedisSettings(url=url)
    assert "s3cr" not in str(caught.value)


@pytest.mark.servers
def test_a_password_opens_every_kind_of_connection(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "data", password="s3cret")
    server.start()
    try:
        generation = new_generation(buckets=1)
        store = RedisViewStore(server.settings.model_copy(update={"url": f"redis://127.0.0.1:{server.port}/5"}))
        assert store.create_marks(generation, {0: mark("", 0)})
        assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
        assert store.keys(generation, 0, "", 9) == ["a"]
        store.close()
        stranger = RedisViewStore(server.settings.model_copy(update={"password": SecretStr("wr0ng")}))
        for refused in (
            lambda: stranger.flush([flush_of(generation, 0, "", "t1")]),
            lambda: stranger.marks(generation),
        ):
            with pytest.raises(InfrastructureError, match=rf"redis at 127\.0\.0\.1:{server.port} refused: ") as caught:
                refused()
            assert "wr0ng" not in str(caught.value)
        stranger.close()
    finally:
        server.kill()


@pytest.mark.servers
def test_a_socket_in_the_file_system_serves_every_kind_of_connection(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "data", password="s3cret")
    server.start()
    try:
        generation = new_generation(buckets=1)
        store = RedisViewStore(server.settings.model_copy(update={"url": f"unix://{server.unix_socket}?db=2"}))
        assert store.create_marks(generation, {0: mark("", 0)})
        assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
        assert asyncio.run(store.aread(generation, [(0, "a")])).marks == {0: mark("t1", 1)}
        store.close()
        with server.client() as client:
            client.select(2)
            assert client.dbsize() == 6
    finally:
        server.kill()
