"""What other users of the machine can do with the servers of a data directory: nothing."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from pydantic import SecretStr

from leftfold.errors import ConfigurationError
from leftfold.local import LocalSettings, Servers, down, embedded, status, up
from leftfold.local import redis as local_redis
from leftfold.safety import veiled

pytestmark = pytest.mark.servers

REDIS = frozenset({"redis"})


def password(data: Path) -> str:
    return (data / "redis" / "password").read_text("utf-8").strip()


def everything_shown(data: Path) -> str:
    """All that others see: command lines of this process's family, and what is written for people."""
    mine = psutil.Process()
    family = [mine, *mine.children(recursive=True), *(psutil.Process(server.pid) for server in status(data).servers)]
    lines = []
    for process in family:
        with suppress(psutil.NoSuchProcess):  # a child of another test that has ended by now
            lines.append(" ".join(process.cmdline()))
    return "\n".join([*lines, repr(status(data)), *(log.read_text("utf-8") for log in data.rglob("*.log"))])


@pytest.mark.parametrize("chosen", ["", 'p@ss "word"'])
def test_only_who_can_read_the_data_directory_gets_into_its_redis(tmp_path: Path, chosen: str) -> None:
    settings = LocalSettings(redis_password=SecretStr(chosen) if chosen else None)
    with embedded(tmp_path / "data", settings=settings, want=REDIS) as servers:
        data = servers.data
        assert servers == Servers(kafka="", redis=servers.redis, data=data)
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        files = [
            "redis/redis.conf",
            "plan.json",
            "keeper.json",
            "servers.json",
            *([] if chosen else ["redis/password"]),
        ]
        for name in files:
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600, name
        without = f"redis://{servers.redis.rpartition('@')[2]}"
        with redis.Redis.from_url(without) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis.from_url(servers.redis) as client:
            assert client.ping()
            for words in ("CONFIG SET dir /tmp", "MODULE LIST", "DEBUG SLEEP 0", "REPLICAOF h 1", "SLAVEOF h 1"):
                with pytest.raises(redis.ResponseError, match="unknown command"):
                    client.execute_command(*words.split())
        assert chosen or len(password(data)) >= 32
        assert chosen or password(data) in servers.redis
        assert (chosen or password(data)) not in everything_shown(data) + repr(servers)


def test_each_data_directory_has_a_password_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    found = []
    for place in ("one", "two", "one"):
        with embedded(tmp_path / place, want=REDIS) as servers:
            found.append(urlsplit(servers.redis).password)
    assert found[0] == found[2] != found[1]


def test_the_next_up_gives_a_redis_of_an_older_version_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    settings = LocalSettings(data=data)
    try:
        with_password = up(settings, want=REDIS)
        with redis.Redis.from_url(with_password.redis) as client:
            client.set("kept", "yes")
        as_an_older_version_left_it(data, settings)
        plain = status(data).servers[0].address
        with redis.Redis.from_url(plain) as client:
            assert client.get("kept") == b"yes"
        servers = up(settings, want=REDIS)
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        with redis.Redis.from_url(plain) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis.from_url(servers.redis) as client:
            assert client.get("kept") == b"yes"
        assert json.loads((data / "servers.json").read_text("utf-8"))["redis"] == servers.redis
    finally:
        down(data)


def as_an_older_version_left_it(data: Path, settings: LocalSettings) -> None:
    """Starts the Redis again without a password, in a directory that everybody may enter."""
    from dataclasses import replace

    from leftfold.local.embedded_servers import wait_ready
    from leftfold.local.launch import start_keeper, wait_answer, write_plan

    down(data)
    plan = local_redis.plan_redis(settings, data)
    config = data / "redis" / "redis.conf"
    kept = [line for line in config.read_text("utf-8").splitlines() if not line.startswith(("requirepass", "rename"))]
    config.write_text("\n".join(kept) + "\n", "utf-8")
    (data / "redis" / "password").unlink()
    data.chmod(0o755)
    request = write_plan(data, [replace(plan, address=veiled(plan.address).replace("***@", ""))], stop_seconds=20)
    start_keeper(data, "detached")
    wait_answer(data, request)
    wait_ready(data, "redis", local_redis.answers_ping, 240.0)


def test_a_directory_with_other_files_is_not_closed_but_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"holds other files.*LEFTFOLD_DATA"), embedded(tmp_path, want=REDIS):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(ConfigurationError, match="belongs to another user"), embedded(tmp_path, want=REDIS):
        pass


def test_servers_are_shown_without_their_password() -> None:
    assert "hunter2" not in repr(Servers(kafka="h:1", redis="redis://:hunter2@h:2/0", data=Path()))
