"""One Redis server per test module."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from leftfold.ports.notifications import LoopBell, ThreadBell
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


@pytest.fixture(scope="package")
def _lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    cluster = ClusterSet(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="module")
def cluster(_lasting_cluster: ClusterSet) -> ClusterSet:
    """A running cluster with nothing in it; the next module has the same one, whole and emptied again."""
    _lasting_cluster.bring_back()
    _lasting_cluster.empty()
    return _lasting_cluster


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody has looked, and looked again, and now waits for a bell."""
    entered, blocked, suspended = threading.Event(), ThreadBell.wait, LoopBell.wait

    def wait(self: ThreadBell, seconds: float) -> None:
        entered.set()
        blocked(self, seconds)

    async def await_(self: LoopBell, seconds: float) -> None:
        entered.set()
        await suspended(self, seconds)

    monkeypatch.setattr(ThreadBell, "wait", wait)
    monkeypatch.setattr(LoopBell, "wait", await_)
    return entered
