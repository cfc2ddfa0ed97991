"""One Redis server per test module, and one cluster for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from leftfold.ports.flush import Generation
from leftfold.ports.notifications import AsyncWaiter, Waiter
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.pubsub import Subscriber
from tests.redis.cluster_set import ClusterSet
from tests.redis.server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running server, ended with the module."""
    with RedisServer(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisViewStore]:
    store = RedisViewStore(server.settings)
    yield store
    store.close()


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


@pytest.fixture(params=["server", "cluster"])
def either(request: pytest.FixtureRequest) -> RedisServer | ClusterSet:
    found: RedisServer | ClusterSet = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def stores() -> Iterator[Callable[[RedisSettings], RedisViewStore]]:
    with ExitStack() as stack:

        def open_(settings: RedisSettings) -> RedisViewStore:
            return stack.enter_context(closing(RedisViewStore(settings)))

        yield open_


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """No subscriber looks at the checkpoints for the readers that wait."""

    async def looks_away(self: Subscriber, generation: Generation) -> None:
        pass

    monkeypatch.setattr(Subscriber, "_poll_generation", looks_away)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that have looked, and looked again, and now wait to be notified."""
    entered, blocked, suspended = set[int](), Waiter.wait, AsyncWaiter.wait

    def wait(self: Waiter, seconds: float) -> None:
        entered.add(threading.get_ident())
        blocked(self, seconds)

    async def await_(self: AsyncWaiter, seconds: float) -> None:
        entered.add(threading.get_ident())
        await suspended(self, seconds)

    monkeypatch.setattr(Waiter, "wait", wait)
    monkeypatch.setattr(AsyncWaiter, "wait", await_)
    return entered
