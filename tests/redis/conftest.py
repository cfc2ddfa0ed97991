"""One Redis server per test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.redis import RedisViewStore
from tests.redis.cluster_set import ClusterSet
from tests.redis.sentinel_set import SentinelSet
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


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    """A master, a replica and their sentinels, ended with the module."""
    sentinels = SentinelSet(tmp_path_factory.mktemp("sentinels"))
    try:
        sentinels.start()
        yield sentinels
    finally:
        sentinels.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    """A running cluster, ended with the module."""
    cluster = ClusterSet(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
