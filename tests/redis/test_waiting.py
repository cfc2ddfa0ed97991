"""Waiting by notice: who is woken, what it costs, and what happens when notices or connections are lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from leftfold import InfrastructureError, Position
from leftfold.client import Reader
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, Snapshot
from leftfold.redis import RedisSettings, RedisViewStore, flusher
from leftfold.redis import pubsub as subscriber
from leftfold.redis.connection.protocol import RedisQuery
from leftfold.redis.connection.topology import ClusterTopology
from leftfold.redis.pubsub import Subscriber
from leftfold.testing.contracts.readers import flush_of, row
from tests.client.changes_contract import bench_on
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import TOPIC, FoldBench, out
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import BUCKETS, hears, is_notified, new_spread, owners_of, slot_of
from tests.redis.server import RedisServer, calls, counted, offset
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

Stores: TypeAlias = Callable[..., RedisViewStore]
How: TypeAlias = Callable[[Reader[Spend], Position, float], object]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes notify no reader."""
    monkeypatch.setattr(flusher, "notices", lambda flushes: ())


async def _stays_deaf(self: Subscriber, awaited: Iterable[Generation]) -> None:
    pass


def subscribers(server: RedisServer) -> int:
    with server.client() as client:
        return sum(int(found["sub"]) > 0 for found in client.client_list())


def late(bench: FoldBench) -> Position:
    """Behind an event that no projector has folded yet."""
    (record,) = bench.write(out("late", "h1", p=1))
    return Position.at(TOPIC, record.partition, record.offset + 1)


def blocking(reader: Reader[Spend], position: Position, timeout: float) -> object:
    return reader.get("h1", after=position, timeout=timeout)


def in_a_loop(reader: Reader[Spend], position: Position, timeout: float) -> object:
    return asyncio.run(reader.aget("h1", after=position, timeout=timeout))


BOTH = (blocking, in_a_loop)


def seconds_of(how: How, reader: Reader[Spend], position: Position, timeout: float) -> float:
    began = time.monotonic()
    assert how(reader, position, timeout) is not None
    return time.monotonic() - began


def read_while_folding(
    store: RedisViewStore, waits: set[int], hows: Sequence[How] = BOTH, timeout: float = WAIT_SECONDS
) -> list[float]:
    """Reads in threads, folds once they wait, and says how many seconds they read; without being woken, all of them."""
    bench = bench_on(store, household_spend)
    projector, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]
    waits.clear()
    with ThreadPoolExecutor(len(hows)) as pool:
        reading = [pool.submit(seconds_of, how, reader, position, timeout) for how in hows]
        wait_until(lambda: len(waits) == len(hows), "the readers to wait")
        assert not any(read.done() for read in reading)
        bench.settle(projector)
        return [read.result(2 * WAIT_SECONDS) for read in reading]


@pytest.mark.usefixtures("no_net")
def test_a_notice_alone_wakes_a_reader(either: RedisServer | ClusterSet, stores: Stores, waits: set[int]) -> None:
    assert max(read_while_folding(stores(either.settings), waits)) < WAIT_SECONDS


@pytest.mark.usefixtures("silent")
def test_a_reader_whose_notice_was_lost_is_woken_by_the_net(store: RedisViewStore, waits: set[int]) -> None:
    assert max(read_while_folding(store, waits)) < WAIT_SECONDS


@pytest.mark.usefixtures("silent", "no_net")
def test_twin_with_neither_no_reader_is_woken(store: RedisViewStore, waits: set[int]) -> None:
    assert min(read_while_folding(store, waits, timeout=10.0)) >= 10.0, "they read again only when their time was up"


def test_a_reader_that_need_not_wait_subscribes_to_nothing(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    position = late(bench)
    bench.settle()
    reader = bench.views[household_spend]
    threads = set(threading.enumerate())
    assert reader.get("h1", after=position) == asyncio.run(reader.aget("h1", after=position))
    assert subscribers(server) == 0
    assert set(threading.enumerate()) <= threads


def begin_to_read(
    pool: ThreadPoolExecutor, server: RedisServer, store: RedisViewStore, count: int = 1
) -> tuple[list[Future[Spend | None]], Callable[[], object]]:
    """Readers in threads that wait by one subscription, and what folds the event that they wait for."""
    bench = bench_on(store, household_spend)
    projector, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]
    reads = [pool.submit(reader.get, "h1", after=position, timeout=WAIT_SECONDS) for _ in range(count)]
    wait_until(lambda: subscribers(server) > 0, "a subscription")
    assert subscribers(server) == 1
    return reads, lambda: bench.settle(projector)


def test_all_who_wait_in_threads_share_one_subscription_which_is_made_again(
    server: RedisServer, store: RedisViewStore
) -> None:
    with ThreadPoolExecutor(16) as pool:
        reads, settle = begin_to_read(pool, server, store, 16)
        with server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: subscribers(server) == 1, "a new subscription")
        settle()
        assert {read.result(WAIT_SECONDS) for read in reads} == {Spend(Decimal(1), "base")}


def test_a_dead_server_fails_those_who_wait(server: RedisServer, stores: Stores) -> None:
    with ThreadPoolExecutor(1) as pool:
        (read,), _ = begin_to_read(pool, server, stores(server.settings))
        server.kill()
        try:
            with pytest.raises(InfrastructureError, match="is the address right"):
                read.result(WAIT_SECONDS)
        finally:
            server.start()


def test_closing_ends_the_calls_that_wait(
    server: RedisServer, store: RedisViewStore, stores: Stores, waits: set[int]
) -> None:
    bench = bench_on(store, household_spend)
    bench.settle()
    position, other = late(bench), stores(server.settings)
    reader = Reader(household_spend, other)
    watch, get = lambda _: next(reader.watch()), lambda _: blocking(reader, position, 2 * WAIT_SECONDS)
    with Background(watch, get, raises=False) as waiting:
        wait_until(lambda: len(waits) == 2, "both to wait")
        other.close()
    with pytest.raises(InfrastructureError) as refused:
        reader.get("h1")
    assert "is closed; connect again" in str(refused.value)
    assert [repr(failure) for failure in waiting.failures] == [repr(refused.value)] * 2


FORKING = """
import os, signal, sys
from leftfold import InfrastructureError
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.testing.contracts.readers import new_generation

store, generation = RedisViewStore(RedisSettings(url=sys.argv[1])), new_generation()
store.listen(generation, None).close()
if not os.fork():
    signal.alarm(120)
    print(store.registry("nothing").generations, flush=True)
    try:
        store.listen(generation, None)
    except InfrastructureError as error:
        print(error, flush=True)
    store.close()
    sys.exit(0)
print(os.wait()[1])
store.close()
"""


def test_a_forked_process_reads_but_waits_by_a_connection_of_its_own_only(server: RedisServer) -> None:
    command = [sys.executable, "-c", FORKING, server.settings.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, refused, status = done.stdout.splitlines()
    assert read == "{}"
    assert "connect in the forked process: connect(app)" in refused
    assert status == "0", "it did not end by itself"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Generation]:
    """Every look at the checkpoints of a generation, for all who wait for it."""
    seen: list[Generation] = []
    look = Subscriber._poll_generation

    async def counted_look(self: Subscriber, generation: Generation) -> None:
        seen.append(generation)
        await look(self, generation)

    monkeypatch.setattr(Subscriber, "_poll_generation", counted_look)
    return seen


def test_who_waits_is_woken_once_for_each_change_also_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = Generation("v", "g", "hash", False, 1, {TOPIC: 1}, Phase.LIVE)
    tokens, woken = ["1"], list[Position]()

    async def ask(query: object) -> Snapshot:
        return Snapshot("g", {0: Checkpoint(Position(), 0, token=tokens[0])}, ())

    client: Any = SimpleNamespace(ask=ask)
    topology: Any = None
    waiting = Subscriber(RedisSettings(), client, topology)
    monkeypatch.setattr(waiting.notifier, "reached", lambda view, id_, position: woken.append(position))

    async def look() -> None:
        for count in range(1, 4):
            tokens[0] = str(count)
            for _ in range(3):
                await waiting._poll_generation(generation)
            assert len(woken) == count

    asyncio.run(look())


def test_an_unreadable_checkpoint_wakes_who_waits_and_ends_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    generation, woken = Generation("v", "g", "hash", False, 1, {TOPIC: 1}, Phase.LIVE), list[str]()
    checkpoint = [b"phase", b"a phase of a newer version", b"token", b"1"]

    async def ask(query: RedisQuery[Snapshot]) -> Snapshot:
        return query.answer([b"g", checkpoint])

    client: Any = SimpleNamespace(ask=ask)
    topology: Any = None
    waiting = Subscriber(RedisSettings(), client, topology)
    monkeypatch.setattr(waiting.notifier, "changed", woken.append)
    asyncio.run(waiting._poll_generation(generation))
    assert woken == ["v"], "they read again, and get the error there"


def _longer(looks: list[Generation], count: int) -> bool:
    return len(looks) >= count


def test_many_who_wait_read_nothing_but_the_marks_now_and_then(
    server: RedisServer, store: RedisViewStore, looks: list[Generation]
) -> None:
    bench = bench_on(store, household_spend)
    projector, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]

    async def all_wait() -> None:
        reads = [asyncio.create_task(reader.aget("h1", after=position, timeout=240.0)) for _ in range(500)]
        deadline = time.monotonic() + 2 * WAIT_SECONDS
        while True:
            first, before = len(looks), await asyncio.to_thread(calls, server)
            await asyncio.to_thread(wait_until, partial(_longer, looks, first + 5), "five looks at the marks")
            read = (await asyncio.to_thread(calls, server))["hgetall"] - before["hgetall"]
            if 0 < read <= 16 * (len(looks) - first + 1):
                break
            assert time.monotonic() < deadline, f"{read} reads in {len(looks) - first} looks: a reader polls"
        await asyncio.to_thread(bench.settle, projector)
        assert None not in await asyncio.gather(*reads)

    asyncio.run(all_wait())


def test_no_subscriber_listens_for_ever(
    server: RedisServer, store: RedisViewStore, waits: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "IDLE_SECONDS", 0.2)
    for _ in range(2):
        assert read_while_folding(store, waits, [blocking])[0] < WAIT_SECONDS
        wait_until(lambda: subscribers(server) == 0, "the end of the subscription")


def test_a_watcher_of_an_idle_view_asks_for_little(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    bench.settle()
    assert list(bench.views[household_spend].watch(timeout=0.0)) == []
    with counted(server) as counts:
        assert list(bench.views[household_spend].watch(timeout=1.0)) == []
    assert counts["xrange"] + counts.get("xrevrange", 0) <= 6 * 16, "it read its streams more often than it was woken"


def landed(store: RedisViewStore, flush: BucketFlush) -> bool:
    """Whether a flush is written now; a failover may be under way, and connections lost."""
    with suppress(InfrastructureError):
        return store.flush([flush])
    return False


def listening_at(node: int, *, only: bool) -> Any:
    """What `masters` answers, with one node before the others or alone."""
    found = ClusterTopology.masters

    def masters(slots: ClusterTopology) -> Any:
        first, *others = sorted(found(slots), key=lambda server: server.port != node)
        return [first] if only else [first, *others]

    return masters


@pytest.mark.usefixtures("no_net")
def test_flushes_of_every_node_are_heard_on_each(
    cluster: ClusterSet, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stores(cluster.settings)
    generation = new_spread(cluster, writer)
    ports = {owner.port for owner in owners_of(cluster, generation)}
    for number, port in enumerate(ports):
        with monkeypatch.context() as patch:
            patch.setattr(ClusterTopology, "masters", listening_at(port, only=True))
            waiter = stores(cluster.settings).listen(generation, None)
        for bucket in range(BUCKETS):
            before = f"t{number}" if number else ""
            assert writer.flush([flush_of(generation, bucket, before, f"t{number + 1}", row(f"r{number}"))])
            wait_until(partial(is_notified, waiter), f"bucket {bucket} to be heard on port {port}")
        waiter.close()


@pytest.mark.usefixtures("no_net")
def test_a_flush_is_heard_after_the_node_that_was_listened_to_died(
    cluster: ClusterSet, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin does not listen to another node."""
    store, deaf = stores(cluster.settings), stores(cluster.settings)
    generation = new_spread(cluster, store)
    node = cluster.owner(slot_of(generation, 0))
    replica = cluster.replica_of(node)
    monkeypatch.setattr(ClusterTopology, "masters", listening_at(node.port, only=False))
    waiter, twin = store.listen(generation, None), deaf.listen(generation, None)
    client = deaf._background._client
    assert client is not None
    monkeypatch.setattr(client.subscriber, "_reconnect", partial(_stays_deaf, client.subscriber))
    assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
    wait_until(lambda: is_notified(waiter), "the first flush to be heard")
    wait_until(lambda: is_notified(twin), "the first flush to be heard")
    wait_until(lambda: offset(node) == offset(replica), "the replica to have everything")
    node.kill()
    cluster.wait_promoted(replica)
    wait_until(lambda: hears(store, generation), "another node to be listened to")
    for one in (waiter, twin):
        is_notified(one)
    wait_until(lambda: landed(store, flush_of(generation, 0, "t1", "t2", row("b"))), "the flush to land")
    wait_until(lambda: is_notified(waiter), "the flush to be heard")
    assert not hears(deaf, generation)
    assert not is_notified(twin)
    for one in (waiter, twin):
        one.close()
