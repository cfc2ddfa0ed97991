"""Whoever waits hears of flushes behind sentinels and in a cluster, also after the server that was listened to died."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from leftfold.errors import InfrastructureError
from leftfold.ports.flush import BucketFlush, Generation
from leftfold.ports.notifications import ThreadBell
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.topology import ClusterTopology
from leftfold.redis.pubsub import Subscriber
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.client.changes_contract import bench_on
from tests.domains.shop import household_spend
from tests.redis.cluster_set import ClusterSet
from tests.redis.clustered import BUCKETS, new_spread, slot_of
from tests.redis.sentinel_set import SentinelSet
from tests.redis.server import RedisServer, offset
from tests.redis.test_waiting import SOON, How, blocking, in_a_loop, read_while_folding
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the checkpoints for those who wait: only notices wake them."""
    monkeypatch.setattr(Subscriber, "_poll_generation", _looks_away)


async def _looks_away(self: Subscriber, generation: Generation) -> None:
    pass


async def _stays_deaf(self: Subscriber, awaited: Iterable[Generation]) -> None:
    pass


@pytest.fixture(params=["sentinels", "cluster"])
def servers(request: pytest.FixtureRequest) -> SentinelSet | ClusterSet:
    """Either of the two, whole."""
    found: SentinelSet | ClusterSet = request.getfixturevalue(request.param)
    found.bring_back()
    return found


@pytest.fixture
def store(servers: SentinelSet | ClusterSet) -> Iterator[RedisViewStore]:
    """A store on it."""
    store = RedisViewStore(servers.settings)
    yield store
    store.close()


def has_rung(bell: ThreadBell) -> bool:
    """Whether it did, since this was asked last."""
    rung = bell._rung.is_set()
    bell._rung.clear()
    return rung


def hears(store: RedisViewStore, generation: Generation) -> bool:
    """Whether the store's thread is subscribed at this moment."""
    client = store._background._client
    return client is not None and client.subscriber.is_subscribed(generation)


def landed(store: RedisViewStore, flush: BucketFlush) -> bool:
    """Whether a flush is written now; a failover may be under way, and connections lost."""
    try:
        return store.flush([flush])
    except InfrastructureError:
        return False


@pytest.mark.parametrize("how", [blocking, in_a_loop])
def test_a_notice_alone_wakes_a_reader(store: RedisViewStore, waits: threading.Event, how: How) -> None:
    assert read_while_folding(bench_on(store, household_spend), how, waits) < SOON


def test_flushes_of_every_node_are_heard_on_each(cluster: ClusterSet, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.bring_back()
    writer = RedisViewStore(cluster.settings)
    generation = new_spread(cluster, writer)
    ports = {cluster.owner(slot_of(generation, bucket)).port for bucket in range(BUCKETS)}
    for number, port in enumerate(ports):
        at = cluster.settings.at(("127.0.0.1", port))
        monkeypatch.setattr(ClusterTopology, "masters", listening_only_at(at))
        listener = RedisViewStore(cluster.settings)
        bell = listener.listen(generation, None)
        for bucket in range(BUCKETS):
            before = f"t{number}" if number else ""
            assert writer.flush([flush_of(generation, bucket, before, f"t{number + 1}", row(f"r{number}"))])
            wait_until(partial(has_rung, bell), f"bucket {bucket} to be heard on port {port}")
        bell.close()
        listener.close()
    writer.close()


def listened_to(servers: SentinelSet | ClusterSet, generation: Generation) -> tuple[RedisServer, RedisServer]:
    """The server with bucket 0, on which listeners are made to listen, and its replica."""
    if isinstance(servers, SentinelSet):
        return servers.master, servers.replica
    owner = servers.owner(slot_of(generation, 0))
    return owner, servers.replica_of(owner)


def listening_only_at(server: RedisSettings) -> Callable[[ClusterTopology], list[RedisSettings]]:
    """What `masters` answers where there is no choice."""
    return lambda slots: [server]


def listening_first_at(node: RedisServer) -> Callable[[ClusterTopology], list[RedisSettings]]:
    """What `masters` answers, with one node before the others."""
    found = ClusterTopology.masters
    return lambda slots: sorted(found(slots), key=lambda server: server.port != node.port)


def lose_what_is_listened_to(
    servers: SentinelSet | ClusterSet, store: RedisViewStore, monkeypatch: pytest.MonkeyPatch
) -> tuple[Generation, ThreadBell]:
    """Hangs a bell, kills the server on which it hears, and waits until the replica leads."""
    generation = new_spread(servers, store) if isinstance(servers, ClusterSet) else new_generation(1)
    if isinstance(servers, SentinelSet):
        assert store.create_marks(generation, {0: checkpoint("", 0)})
    server, replica = listened_to(servers, generation)
    monkeypatch.setattr(ClusterTopology, "masters", listening_first_at(server))
    bell = store.listen(generation, None)
    assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
    wait_until(lambda: has_rung(bell), "the first flush to be heard")
    wait_until(lambda: offset(server) == offset(replica), "the replica to have everything")
    server.kill()
    servers.wait_promoted(replica)
    return generation, bell


def test_a_flush_is_heard_after_the_server_that_was_listened_to_died(
    servers: SentinelSet | ClusterSet, store: RedisViewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation, bell = lose_what_is_listened_to(servers, store, monkeypatch)
    wait_until(lambda: hears(store, generation), "another server to be listened to")
    has_rung(bell)
    wait_until(lambda: landed(store, flush_of(generation, 0, "t1", "t2", row("b"))), "the flush to land")
    wait_until(lambda: has_rung(bell), "the flush to be heard")
    bell.close()


def test_twin_who_does_not_listen_anew_hears_nothing(
    servers: SentinelSet | ClusterSet, store: RedisViewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subscriber, "_reconnect", _stays_deaf)
    generation, bell = lose_what_is_listened_to(servers, store, monkeypatch)
    has_rung(bell)
    witness = RedisViewStore(servers.settings)
    heard = witness.listen(generation, None)
    wait_until(lambda: landed(store, flush_of(generation, 0, "t1", "t2", row("b"))), "the flush to land")
    wait_until(lambda: has_rung(heard), "the flush to be heard by another")
    assert not hears(store, generation)
    assert not has_rung(bell)
    for one in (bell, heard):
        one.close()
    witness.close()


def test_coroutines_are_answered_again_after_a_failover(cluster: ClusterSet) -> None:
    cluster.bring_back()
    store = RedisViewStore(cluster.settings)
    generation = new_spread(cluster, store)
    assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
    owner = cluster.owner(slot_of(generation, 0))
    replica = cluster.replica_of(owner)

    async def across() -> None:
        before = await store.aread(generation, [(0, "a")])
        await asyncio.to_thread(cluster.wait_replicated, owner)
        await asyncio.to_thread(owner.kill)
        await asyncio.to_thread(cluster.wait_promoted, replica)
        asked = [store.aread(generation, [(0, "a")]) for _ in range(20)]
        assert [found == before for found in await asyncio.gather(*asked)] == [True] * 20

    asyncio.run(across())
    store.close()
