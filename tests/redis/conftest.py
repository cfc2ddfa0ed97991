"""One Redis server per test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from tests.redis.server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running server, ended with the module."""
    server = RedisServer(tmp_path_factory.mktemp("redis") / "data")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisViewStore]:
    """A store on it."""
    store = RedisViewStore(server.settings)
    yield store
    store.close()
