"""Settings reach the right server and never show a password."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from leftfold.redis import RedisSettings
from leftfold.redis.connection.settings import SHAPES
from leftfold.safety import veiled

SECRET = "s3cr/t@:x"
URL = "redis://app:s3cr%2Ft%40%3Ax@cache.example:6380/3"


def test_a_password_in_the_url_is_moved_out_of_it() -> None:
    settings = RedisSettings(url=URL)
    assert settings.url == "redis://app@cache.example:6380/3"
    assert settings.password == SecretStr(SECRET)
    reported = (settings.host, settings.port, settings.database, settings.username, settings.address)
    assert reported == ("cache.example", 6380, 3, "app", "cache.example:6380")
    assert "s3cr" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


def test_a_password_of_its_own_wins() -> None:
    settings = RedisSettings(url=URL, password=SecretStr("other"))
    assert settings.password == SecretStr("other")


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


def test_a_master_behind_sentinels_has_their_addresses_its_name_and_a_login() -> None:
    settings = RedisSettings(url="redis+sentinel://app:s3cr%2Ft%40%3Ax@s1,[::1]:26380,s3.example:5000/my%20rows/3")
    assert settings.url == "redis+sentinel://app@s1,[::1]:26380,s3.example:5000/my%20rows/3"
    assert (settings.kind, settings.service, settings.database) == ("sentinel", "my rows", 3)
    assert settings.nodes == (("s1", 26379), ("::1", 26380), ("s3.example", 5000))
    assert settings.address == "my rows (sentinels s1:26379,[::1]:26380,s3.example:5000)"
    assert settings.password == SecretStr(SECRET)
    assert not settings.encrypted
    assert "s3cr" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


def test_the_master_that_sentinels_name_is_reached_with_the_login_of_the_url() -> None:
    settings = RedisSettings(url="rediss+sentinel://app%40x:pw@s1:26379/rows/3", ca_file=Path("ca.pem"))
    master = settings.at(("::1", 6380))
    assert (master.kind, master.host, master.port, master.database) == ("server", "::1", 6380, 3)
    assert (master.username, master.encrypted, master.ca_file) == ("app@x", True, Path("ca.pem"))
    assert master.password == settings.password


def test_sentinels_have_a_login_of_their_own() -> None:
    settings = RedisSettings(
        url="rediss+sentinel://app:pw@s1:26379/rows/3", sentinel_username="watcher", sentinel_password=SecretStr("spw")
    )
    sentinel = settings.sentinel_at(settings.nodes[0])
    assert (sentinel.username, sentinel.database, sentinel.encrypted) == ("watcher", 0, True)
    assert sentinel.password == SecretStr("spw")
    bare = RedisSettings(url="redis+sentinel://app:pw@s1:26379/rows").sentinel_at(("s1", 26379))
    assert (bare.username, bare.password) == (None, None)


def test_a_cluster_has_the_addresses_of_some_nodes_and_a_login() -> None:
    settings = RedisSettings(url="rediss+cluster://app:pw@h1:7000,h2")
    assert (settings.kind, settings.nodes, settings.encrypted) == ("cluster", (("h1", 7000), ("h2", 6379)), True)
    assert settings.address == "h1:7000,h2:6379 (cluster)"
    node = settings.at(("10.0.0.1", 7003))
    assert (node.url, node.password) == ("rediss://app@10.0.0.1:7003/0", SecretStr("pw"))
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:s3cret@h:26379",
        "redis+sentinel://:s3cret@h:26379/",
        "redis+sentinel://:s3cret@h:26379/rows/name",
        "redis+sentinel://:s3cret@h:26379/rows/0/1",
        "redis+sentinel://:s3cret@h:26379/rows?db=1",
        "redis+sentinel://:s3cret@/rows",
        "redis+sentinel://:s3cret@h:26379,/rows",
        "redis+sentinel://:s3cret@h:0/rows",
        "redis+sentinel://:s3cret@h:99999/rows",
        "redis+sentinel://:s3cr/et@h:26379/rows",
        "redis+sentinel://:s3cr@et@h:26379/rows",
        "redis+cluster://:s3cret@h:7000/1",
        "redis+cluster://:s3cret@h:7000/name",
        "redis+cluster://:s3cret@h:7000,h2:port",
        "redis+cluster://:s3cret@h:7000#x",
        "redis+other://:s3cret@h:7000",
        "redis-sentinel://:s3cret@h:26379/0#rows",
        "sentinel://:s3cret@h:26379",
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


def test_the_forms_of_a_url_are_printed_as_they_are() -> None:
    assert veiled(SHAPES) == SHAPES
