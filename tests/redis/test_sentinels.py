"""Whatever happens to the master, commands find the one of the moment, and rows end as the log's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from leftfold import memory
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.ports.queries import Registered, Rows
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.redis.connection.asyncio import RoutedAsyncClient
from leftfold.redis.connection.server import open_server
from leftfold.redis.connection.settings import Node
from leftfold.redis.connection.topology import SentinelTopology, open_connection
from leftfold.redis.flusher import Flusher
from leftfold.redis.reads import compile_query
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, flush_of, row
from tests.cli.shell import Shell
from tests.domains.ledger import app
from tests.free_ports import free_port
from tests.redis.flushes import Blind, Repeating, flushes, hears, is_notified, new_marked
from tests.redis.ledgers import NOW, heals_after
from tests.redis.sentinel_set import SERVICE, Sentinel, SentinelSet
from tests.redis.server import RedisServer, offset
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

SECRET = "s3cret"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelSet]:
    """A master, a replica and their sentinels, all of which want a password."""
    sentinels = SentinelSet(tmp_path_factory.mktemp("sentinels"), SECRET)
    try:
        sentinels.start()
        yield sentinels
    finally:
        sentinels.kill()


@pytest.fixture
def sentinels(started: SentinelSet) -> SentinelSet:
    """Every test begins with a master and a replica that follows it."""
    started.bring_back()
    return started


@pytest.fixture
def store(sentinels: SentinelSet, stores: Callable[..., RedisViewStore]) -> RedisViewStore:
    return stores(sentinels.settings)


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    return new_marked(store, 2)


def strangers(server: RedisServer) -> list[str]:
    """The connections to a server that are neither a test's own nor those of sentinels and replicas."""
    with server.client() as client:
        listed = client.client_list(_type="normal")
        own = str(client.client_id())
    return [one["addr"] for one in listed if one["id"] != own and not one["name"].startswith("sentinel-")]


def test_every_kind_of_connection_goes_to_the_master(sentinels: SentinelSet, store: RedisViewStore) -> None:
    generation = new_marked(store, 1, Phase.BULK)
    with RedisBulkSink(sentinels.settings) as sink, asyncio.Runner() as loop:
        sink.write(generation, 0, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])
        store.seal(generation, {0: replace(checkpoint("s", 0), rows=1)})
        sealed = generation.in_phase(Phase.SEALED)
        assert store.flush([flush_of(sealed, 0, "s", "t1", row("b"))])
        assert loop.run(store.aask(Rows(sealed, ((0, "a"),)))).checkpoints == {0: checkpoint("t1", 1)}
        # A sentinel that connects has no name at first.
        each = "one each of blocking, asyncio, flusher and sink"
        wait_until(lambda: len(strangers(sentinels.master)) == 4 and not strangers(sentinels.replica), each)


def test_after_a_failover_every_kind_of_connection_finds_the_new_master(
    sentinels: SentinelSet, store: RedisViewStore, generation: Generation, tmp_path: Path
) -> None:
    loading = new_marked(store, 1, Phase.BULK)
    red = BulkRow("a", (b"red", b"S"))
    with RedisBulkSink(sentinels.settings) as sink, asyncio.Runner() as loop:
        sink.write(loading, 0, COLUMNS, (), [red])
        assert store.flush(flushes(generation, "", "t1", "a"))
        waiter = store.listen(generation, None)
        assert loop.run(store.aask(Rows(generation, ((0, "a0"),)))).rows != (None,)
        fail_over(sentinels)
        assert loop.run(store.aask(Rows(generation, ((0, "a0"),)))).rows != (None,)
        assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
        assert store.change_registry(generation.view, Registry(), Registry().with_generation(generation))
        wait_until(lambda: hears(store, generation), "the new master to be listened to")
        is_notified(waiter)
        assert not store.flush(flushes(generation, "t1", "t2", "b")), "the connection to the former master was lost"
        assert store.flush(flushes(generation, "t1", "t2", "b"))
        wait_until(lambda: is_notified(waiter), "the flush to be heard")
        waiter.close()
        with pytest.raises(InfrastructureError, match=r"redis at rows \(sentinels .* is not reachable"):
            sink.write(loading, 0, COLUMNS, (), [red._replace(key="b")])
        assert sink.write(loading, 0, COLUMNS, (), [red._replace(key="b")]) == 1
        store.seal(loading, {0: replace(checkpoint("s", 0), rows=2)})
        assert store.keys(generation, 0, "", 9) == ["a0", "b0"]
    assert_does_not_decide(Sentinel(tmp_path / "sentinel", free_port(), SECRET), sentinels)


def assert_does_not_decide(alone: Sentinel, sentinels: SentinelSet) -> None:
    """A sentinel that was cut off names another master; where it is the only one that is asked, it is believed."""
    alone.start()
    try:
        addresses = [f"127.0.0.1:{sentinel.port}" for sentinel in (alone, *sentinels.sentinels[:2])]
        for count in (3, 1):
            url = f"redis+sentinel://:{SECRET}@{','.join(addresses[:count])}/{SERVICE}"
            reported = SentinelTopology(RedisSettings(url=url, sentinel_password=SecretStr(SECRET))).server(b"")
            assert (reported.port == sentinels.master.port) is (count == 3)
    finally:
        alone.kill()


def test_coroutines_that_ask_at_once_share_one_lookup_of_the_master(sentinels: SentinelSet) -> None:
    asked: list[Node] = []

    class Counting(SentinelTopology):
        def _ask(self, node: Node) -> tuple[int, Node]:
            asked.append(node)
            return super()._ask(node)

        def server(self, key: bytes) -> RedisSettings:
            asked.append(("", 0))
            return super().server(key)

    async def ask() -> None:
        client, query = RoutedAsyncClient(Counting(sentinels.settings)), compile_query(Registered("nothing"))
        await asyncio.gather(*(client.ask(query) for _ in range(20)))
        await client.aclose()

    asyncio.run(ask())
    assert len(asked) == 1 + len(sentinels.sentinels) // 2 + 1, "one lookup, which asks a majority"


def fail_over(sentinels: SentinelSet) -> None:
    """Makes the replica the master when it has everything."""
    replica = sentinels.replica
    wait_until(lambda: offset(sentinels.master) == offset(replica), "the replica to have everything")
    sentinels.master.kill()
    sentinels.wait_promoted(replica)


def test_a_flush_to_a_demoted_master_is_an_error_and_writes_nothing(
    sentinels: SentinelSet, store: RedisViewStore, generation: Generation
) -> None:
    """Sentinels cut the connections of whom they demote; an operator does not."""
    assert store.flush(flushes(generation, "", "t1", "a"))
    with sentinels.master.client() as client:
        client.replicaof("127.0.0.1", free_port())
        try:
            with pytest.raises(InfrastructureError, match="refused: READONLY"):
                store.flush(flushes(generation, "t1", "t2", "b"))
            with pytest.raises(InfrastructureError, match="is a slave now, not the master"):
                store.flush(flushes(generation, "t1", "t2", "b"))
        finally:
            client.replicaof("NO", "ONE")
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert store.keys(generation, 0, "", 9) == ["a0"]
    assert store.flush(flushes(generation, "t1", "t2", "b"))


def test_a_server_that_became_a_replica_is_neither_read_nor_written(
    sentinels: SentinelSet, store: RedisViewStore, generation: Generation
) -> None:
    topology = SentinelTopology(sentinels.settings)
    former = sentinels.settings.at(("127.0.0.1", sentinels.replica.port))
    topology._master = former
    with pytest.raises(ConnectionError, match=f"{sentinels.replica.port} is a slave now, not the master"):
        open_connection(topology, b"")
    remembering = RedisViewStore(sentinels.settings)
    for about in (remembering._topology, remembering._flushers._topology):
        assert isinstance(about, SentinelTopology)
        about._master = former
    assert remembering.checkpoints(generation) == {0: checkpoint("", 0), 1: checkpoint("", 0)}
    assert remembering._topology.server(b"").port == sentinels.master.port
    wait_until(lambda: not strangers(sentinels.replica), "no connection to the replica")
    assert remembering.flush(flushes(generation, "", "t1", "a"))
    remembering.close()


def test_twin_without_asking_for_its_role_a_replica_is_read(sentinels: SentinelSet, generation: Generation) -> None:
    client = open_server(sentinels.settings.at(("127.0.0.1", sentinels.replica.port)))
    name = f"v:{{{generation.view}:{generation.id}:0}}@"
    wait_until(lambda: bool(client.execute_command("HGETALL", name)), "the replica to serve what it has")
    client.close()


def test_sentinels_that_do_not_know_the_service_are_named(sentinels: SentinelSet) -> None:
    unknown = sentinels.settings.model_copy(update={"url": sentinels.settings.url.replace("/rows/", "/columns/")})
    store = RedisViewStore(unknown)
    with pytest.raises(
        InfrastructureError, match=r"no sentinel names a master 'columns' .*watches no such master"
    ) as reported:
        store.registry("things")
    assert "redis-cli -h 127.0.0.1" in str(reported.value)
    assert str(reported.value).endswith("sentinel master columns")
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


@pytest.mark.faults
@pytest.mark.parametrize("made", [Flusher, Repeating, Blind])
def test_a_projector_heals_when_the_new_master_lacks_the_last_writes(
    sentinels: SentinelSet, store: RedisViewStore, made: type[Flusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin is blind: it compares no tokens and looks for none, and the rows of the lost writes stay wrong."""
    with sentinels.master.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        is_healed = heals_after(sentinels.lose, world, store, made, monkeypatch)
    assert is_healed is (made is not Blind)


def test_passwords_reach_sentinels_and_servers_and_no_message(
    sentinels: SentinelSet, stores: Callable[..., RedisViewStore], generation: Generation
) -> None:
    for login, why in (
        ("password", "WRONGPASS|invalid username-password"),
        ("sentinel_password", "no sentinel names a master .*invalid username"),
    ):
        stranger = stores(sentinels.settings.model_copy(update={login: SecretStr("wr0ng")}))
        refused: list[Callable[[], object]] = [
            partial(stranger.flush, flushes(generation, "", "t2", "a")),
            partial(stranger.checkpoints, generation),
            partial(_read, stranger, generation),
        ]
        for ask in refused:
            with pytest.raises(ConfigurationError, match=why) as caught:
                ask()
            assert "wr0ng" not in str(caught.value)
            assert SECRET not in str(caught.value)


def _read(store: RedisViewStore, generation: Generation) -> object:
    return asyncio.run(store.aask(Rows(generation, ((0, "a"),))))


def test_status_and_doctor_name_the_master(sentinels: SentinelSet, tmp_path: Path) -> None:
    shell, settings = Shell(tmp_path, {"LEFTFOLD_REDIS_SENTINEL_PASSWORD": SECRET}), sentinels.settings
    url = settings.url.replace("://", f"://:{SECRET}@")
    (row,) = (row for row in shell.here("status", "--redis", url, "--json").rows() if row.get("name") == "redis")
    assert (row["topology"], row["state"]) == ("sentinel", "configured")
    found = {row["about"]: row for row in shell.here("doctor", "--redis", url, "--json").rows()}["redis"]
    assert found["well"], found
    assert f"rows (sentinels 127.0.0.1:{sentinels.sentinels[0].port}," in found["message"]
    assert f": master 127.0.0.1:{sentinels.master.port}: answered in" in found["message"]


def test_a_url_of_another_shape_is_refused_with_the_shapes_there_are(tmp_path: Path) -> None:
    result = Shell(tmp_path).here("doctor", "--redis", "redis-sentinel://:s3cret@h:26379/0", "--json")
    found = {row["about"]: row for row in result.rows()}["redis"]
    assert "must look like redis://" in found["message"]
    assert "redis+sentinel://[user:password@]host[:26379][,host…]/service[/0]" in found["message"]
    assert "s3cret" not in result.out + result.err
