"""Whatever happens to the master, commands find the one of the moment, and rows end as the log's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from leftfold import memory
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import InfrastructureError
from leftfold.memory import World
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import BucketFlush, Generation, Phase, Registry
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import dial
from leftfold.redis.connection.sync import open_server
from leftfold.redis.connection.topology import Sentinels
from leftfold.redis.flusher import Flusher, Flushers
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, flush_of, new_generation, row
from tests.domains.ledger import app
from tests.free_ports import free_port
from tests.redis.sentinel_set import PATIENCE, SERVICE, Sentinel, SentinelSet, role
from tests.redis.server import RedisServer, offset
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on
from tests.redis.twins import Blind, Repeating
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def everything_runs(sentinels: SentinelSet) -> None:
    """Every test begins with a master and a replica that follows it."""
    sentinels.bring_back()


@pytest.fixture
def store(sentinels: SentinelSet) -> Iterator[RedisViewStore]:
    """A store on whoever leads."""
    store = RedisViewStore(sentinels.settings)
    yield store
    store.close()


@pytest.fixture
def sink(sentinels: SentinelSet) -> Iterator[RedisBulkSink]:
    """A sink on whoever leads."""
    with RedisBulkSink(sentinels.settings) as sink:
        yield sink


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    """An empty generation of two buckets."""
    generation = new_generation(buckets=2)
    assert store.create_marks(generation, {0: checkpoint("", 0), 1: checkpoint("", 0)})
    return generation


@pytest.fixture
def world(sentinels: SentinelSet) -> Iterator[World]:
    """A log of its own and an empty Redis."""
    with sentinels.master.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        yield world


def both(generation: Generation, expected: str, token: str, name: str) -> list[BucketFlush]:
    """A flush of both buckets with one row each."""
    return [flush_of(generation, bucket, expected, token, row(f"{name}{bucket}")) for bucket in (0, 1)]


def hand_over(sentinels: SentinelSet) -> None:
    """Has the sentinels swap the roles of two healthy servers.

    They tell the former master eight calm seconds later that it follows now, and on a busy machine there may be
    none for minutes. So it is told here, in the words of sentinels.
    """
    before, after = sentinels.master, sentinels.replica
    with sentinels.sentinels[0].client() as client:
        wait_until(lambda: handed_over(client, after.port), "a sentinel to swap the two", PATIENCE)
    sentinels.wait_promoted(after)
    with before.client() as client, client.pipeline(transaction=True) as together:
        together.execute_command("REPLICAOF", "127.0.0.1", after.port)
        together.execute_command("CLIENT", "KILL", "TYPE", "normal")
        together.execute()
    assert role(before) == "slave"


def handed_over(sentinel: Redis, port: int) -> bool:
    """Whether the sentinel has made this server the master; it is asked again when it gave up on a slow one."""
    told: Any = sentinel.sentinel_master(SERVICE)
    if told["port"] == port:
        return True
    if "failover_in_progress" not in told["flags"]:
        try:
            sentinel.sentinel_failover(SERVICE)
        except ResponseError as error:
            # It has not seen yet how well the replica is, or has begun by itself.
            if "NOGOODSLAVE" not in str(error) and "INPROG" not in str(error):
                raise
    return False


def strangers(server: RedisServer) -> list[str]:
    """The connections to a server that are neither a test's own nor those of sentinels and replicas."""
    with server.client() as client:
        listed = client.client_list(_type="normal")
        own = str(client.client_id())
    return [one["addr"] for one in listed if one["id"] != own and not one["name"].startswith("sentinel-")]


def test_every_kind_of_connection_goes_to_the_master(sentinels: SentinelSet, store: RedisViewStore) -> None:
    generation = new_generation(buckets=1).in_phase(Phase.BULK)
    assert store.create_marks(generation, {0: replace(checkpoint("", 0), phase=Phase.BULK)})
    with RedisBulkSink(sentinels.settings) as sink:
        sink.write(generation, 0, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])
        store.seal(generation, {0: replace(checkpoint("s", 0), rows=1)})
        sealed = generation.in_phase(Phase.SEALED)
        assert store.flush([flush_of(sealed, 0, "s", "t1", row("b"))])

        async def read() -> None:
            assert (await store.aread(sealed, [(0, "a")])).checkpoints == {0: checkpoint("t1", 1)}
            assert len(strangers(sentinels.master)) == 4, "one each of blocking, asyncio, flusher and sink"
            assert strangers(sentinels.replica) == []

        asyncio.run(read())


@pytest.mark.parametrize("how", ["killed", pytest.param("handed over", marks=[pytest.mark.slow, pytest.mark.faults])])
def test_after_a_failover_the_next_command_finds_the_new_master(
    sentinels: SentinelSet, store: RedisViewStore, sink: RedisBulkSink, generation: Generation, how: str
) -> None:
    loading = new_generation(buckets=1).in_phase(Phase.BULK)
    assert store.create_marks(loading, {0: replace(checkpoint("", 0), phase=Phase.BULK)})
    sink.write(loading, 0, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])
    assert store.flush(both(generation, "", "t1", "a"))

    async def across() -> None:
        assert (await store.aread(generation, [(0, "a0")])).rows != (None,)
        await asyncio.to_thread(fail_over, sentinels, how)
        assert (await store.aread(generation, [(0, "a0")])).rows != (None,)

    asyncio.run(across())
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert store.change_registry(generation.view, Registry(), Registry().with_generation(generation))
    assert not store.flush(both(generation, "t1", "t2", "b")), "the connection to the former master was lost"
    assert store.flush(both(generation, "t1", "t2", "b"))
    with pytest.raises(InfrastructureError, match=r"redis at rows \(sentinels .* is not reachable"):
        sink.write(loading, 0, COLUMNS, (), [BulkRow("b", (b"red", b"S"))])
    assert sink.write(loading, 0, COLUMNS, (), [BulkRow("b", (b"red", b"S"))]) == 1
    store.seal(loading, {0: replace(checkpoint("s", 0), rows=2)})
    assert store.keys(generation, 0, "", 9) == ["a0", "b0"]


def fail_over(sentinels: SentinelSet, how: str) -> None:
    """Makes the replica the master, in either of two ways, when it has everything."""
    replica = sentinels.replica
    wait_until(lambda: offset(sentinels.master) == offset(replica), "the replica to have everything")
    if how == "handed over":
        hand_over(sentinels)
        return
    sentinels.master.kill()
    sentinels.wait_promoted(replica)


def test_a_flush_to_a_demoted_master_is_an_error_and_writes_nothing(
    sentinels: SentinelSet, store: RedisViewStore, generation: Generation
) -> None:
    """Sentinels cut the connections of whom they demote; an operator does not."""
    assert store.flush(both(generation, "", "t1", "a"))
    with sentinels.master.client() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            with pytest.raises(InfrastructureError, match="refused: READONLY"):
                store.flush(both(generation, "t1", "t2", "b"))
            with pytest.raises(InfrastructureError, match="is a slave now, not the master"):
                store.flush(both(generation, "t1", "t2", "b"))
        finally:
            client.replicaof("NO", "ONE")
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert store.keys(generation, 0, "", 9) == ["a0"]
    assert store.flush(both(generation, "t1", "t2", "b"))


def test_a_server_that_became_a_replica_is_neither_read_nor_written(
    sentinels: SentinelSet, store: RedisViewStore, generation: Generation
) -> None:
    topology = Sentinels(sentinels.settings)
    former = sentinels.settings.at(("127.0.0.1", sentinels.replica.port))
    topology._master = former
    with pytest.raises(ConnectionError, match=f"{sentinels.replica.port} is a slave now, not the master"):
        topology.wire(b"")
    remembering = RedisViewStore(sentinels.settings)
    for about in (remembering._topology, remembering._flushers._topology):
        assert isinstance(about, Sentinels)
        about._master = former
    assert remembering.checkpoints(generation) == {0: checkpoint("", 0), 1: checkpoint("", 0)}
    assert remembering._topology.server(b"").port == sentinels.master.port
    assert strangers(sentinels.replica) == []
    assert remembering.flush(both(generation, "", "t1", "a"))
    remembering.close()


def test_twin_without_asking_for_its_role_a_replica_is_read(sentinels: SentinelSet, generation: Generation) -> None:
    client = open_server(sentinels.settings.at(("127.0.0.1", sentinels.replica.port)))
    name = f"v:{{{generation.view}:{generation.id}:0}}@"
    wait_until(lambda: bool(client.execute_command("HGETALL", name)), "the replica to serve what it has")
    client.close()


def test_a_sentinel_that_was_cut_off_does_not_decide(sentinels: SentinelSet, tmp_path: Path) -> None:
    fail_over(sentinels, "killed")
    alone = Sentinel(tmp_path / "sentinel", free_port())
    alone.start()
    try:
        first, second = (f"127.0.0.1:{sentinel.port}" for sentinel in sentinels.sentinels[:2])
        url = f"redis+sentinel://127.0.0.1:{alone.port},{first},{second}/{SERVICE}"
        assert Sentinels(RedisSettings(url=url)).server(b"").port == sentinels.master.port
        twin = Sentinels(RedisSettings(url=f"redis+sentinel://127.0.0.1:{alone.port}/{SERVICE}"))
        assert twin.server(b"").port != sentinels.master.port
    finally:
        alone.kill()


def test_sentinels_that_do_not_know_the_service_are_named(sentinels: SentinelSet) -> None:
    unknown = sentinels.settings.model_copy(update={"url": sentinels.settings.url.replace("/rows/", "/columns/")})
    store = RedisViewStore(unknown)
    with pytest.raises(
        InfrastructureError, match=r"no sentinel names a master 'columns' .*watches no such master"
    ) as told:
        store.registry("things")
    assert "redis-cli -h 127.0.0.1" in str(told.value)
    assert str(told.value).endswith("sentinel master columns")
    store.close()


def test_a_minority_of_sentinels_is_enough_to_find_the_master(sentinels: SentinelSet) -> None:
    for sentinel in sentinels.sentinels[:2]:
        sentinel.kill()
    try:
        store = RedisViewStore(sentinels.settings)
        assert store.registry("things") == Registry()
        store.close()
    finally:
        for sentinel in sentinels.sentinels[:2]:
            sentinel.start()


@pytest.mark.parametrize("made", [Flusher, Repeating])
@pytest.mark.faults
def test_a_tail_heals_when_the_new_master_lacks_the_last_writes(
    sentinels: SentinelSet, store: RedisViewStore, world: World, made: type[Flusher]
) -> None:
    lose_flushes(sentinels, store, world, made)
    assert_equal_to_the_log(world, store)


@pytest.mark.faults
def test_twin_without_tokens_the_rows_of_the_lost_writes_stay_wrong(
    sentinels: SentinelSet, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProjectionWriter, "is_confirmed", lambda _: True)
    lose_flushes(sentinels, store, world, Blind)
    with pytest.raises(AssertionError):
        assert_equal_to_the_log(world, store)


def lose_flushes(sentinels: SentinelSet, store: RedisViewStore, world: World, made: type[Flusher]) -> None:
    """Folds three histories, of which the replica that is promoted lacks the second."""
    store._flushers = Flushers(sentinels.settings, dial, made, store._topology)
    tail = tail_on(world, store)

    def more() -> None:
        happen(world, 2)
        settle(tail)

    happen(world, 1)
    settle(tail)
    sentinels.lose(more)
    happen(world, 3, count=2)
    settle(tail)
    tail.close()
