"""Waiting by notice: who is woken, what it costs, and what happens when notices or connections are lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import pytest

from leftfold import InfrastructureError, Position, StaleViewError
from leftfold.client import Reader
from leftfold.ports.flush import Generation, Registry
from leftfold.ports.protocols import AsyncBell
from leftfold.redis import RedisViewStore, flusher
from leftfold.redis import pubsub as subscriber
from leftfold.redis.pubsub import Subscriber
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation
from tests.client.changes_contract import bench_on
from tests.domains.shop import Spend, household_spend, open_baskets
from tests.engine.fold_bench import TOPIC, FoldBench, out
from tests.redis.commandstats import calls, counted
from tests.redis.server import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

SOON = 240.0


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes tell nobody."""
    monkeypatch.setattr(flusher, "notices", lambda flushes: ())


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the checkpoints for those who wait."""
    monkeypatch.setattr(Subscriber, "_poll_generation", _looks_away)


async def _looks_away(self: Subscriber, generation: Generation) -> None:
    pass


def subscribers(server: RedisServer) -> int:
    """How many connections are subscribed to something."""
    with server.client() as client:
        return sum(int(found["sub"]) > 0 for found in client.client_list())


def late(bench: FoldBench) -> Position:
    """Behind an event that no projector has folded yet."""
    (record,) = bench.write(out("late", "h1", p=1))
    return Position.at(TOPIC, record.partition, record.offset + 1)


How: TypeAlias = Callable[[Reader[Spend], Position, float], object]


def read_while_folding(bench: FoldBench, how: How, waits: threading.Event, timeout: float = SOON) -> float:
    """Reads in a thread, folds once it waits, and says how many seconds it read; without being woken, all of them."""
    tail, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]
    waits.clear()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        reading = pool.submit(how, reader, position, timeout)
        wait_until(waits.is_set, "the reader to wait")
        assert not reading.done()
        bench.settle(tail)
        assert reading.result(2 * SOON) is not None
        return time.monotonic() - began


def blocking(reader: Reader[Spend], position: Position, timeout: float) -> object:
    return reader.get("h1", after=position, timeout=timeout)


def in_a_loop(reader: Reader[Spend], position: Position, timeout: float) -> object:
    return asyncio.run(reader.aget("h1", after=position, timeout=timeout))


BOTH = pytest.mark.parametrize("how", [blocking, in_a_loop])


@BOTH
@pytest.mark.usefixtures("no_net")
def test_a_notice_alone_wakes_a_reader(store: RedisViewStore, waits: threading.Event, how: How) -> None:
    bench = bench_on(store, household_spend)
    assert read_while_folding(bench, how, waits) < SOON


@BOTH
@pytest.mark.usefixtures("silent")
def test_a_reader_whose_notice_was_lost_is_woken_by_the_net(
    store: RedisViewStore, waits: threading.Event, how: How
) -> None:
    bench = bench_on(store, household_spend)
    assert read_while_folding(bench, how, waits) < SOON


@BOTH
@pytest.mark.usefixtures("silent", "no_net")
def test_twin_with_neither_nobody_wakes_a_reader(store: RedisViewStore, waits: threading.Event, how: How) -> None:
    bench = bench_on(store, household_spend)
    assert read_while_folding(bench, how, waits, timeout=3.0) >= 3.0, "it read again only when its time was up"


def test_a_reader_that_need_not_wait_subscribes_to_nothing(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    position = late(bench)
    bench.settle()
    reader = bench.views[household_spend]
    threads = set(threading.enumerate())
    assert reader.get("h1", after=position) == asyncio.run(reader.aget("h1", after=position))
    assert subscribers(server) == 0
    assert set(threading.enumerate()) <= threads


def test_all_who_wait_in_threads_share_one_subscription(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    tail, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]
    with ThreadPoolExecutor(16) as pool:
        reads = [pool.submit(reader.get, "h1", after=position, timeout=SOON) for _ in range(16)]
        wait_until(lambda: subscribers(server) > 0, "a subscription")
        assert subscribers(server) == 1
        bench.settle(tail)
        assert {read.result(SOON) for read in reads} == {Spend(Decimal(1), "base")}


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


def _longer(looks: list[Generation], count: int) -> bool:
    return len(looks) >= count


def test_two_thousand_who_wait_read_nothing_but_the_marks_now_and_then(
    server: RedisServer, store: RedisViewStore, looks: list[Generation]
) -> None:
    bench = bench_on(store, household_spend)
    tail, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]

    async def all_wait() -> None:
        reads = [asyncio.create_task(reader.aget("h1", after=position, timeout=240.0)) for _ in range(2000)]
        deadline = time.monotonic() + 2 * SOON
        while True:
            first, before = len(looks), await asyncio.to_thread(calls, server)
            await asyncio.to_thread(wait_until, partial(_longer, looks, first + 5), "five looks at the marks")
            read = (await asyncio.to_thread(calls, server))["hgetall"] - before["hgetall"]
            if 0 < read <= 16 * (len(looks) - first + 1):
                break
            assert time.monotonic() < deadline, f"{read} reads in {len(looks) - first} looks: somebody polls"
        await asyncio.to_thread(bench.settle, tail)
        assert None not in await asyncio.gather(*reads)

    asyncio.run(all_wait())


def test_a_flush_wakes_only_those_whose_position_it_reached(store: RedisViewStore) -> None:
    generation = new_generation(buckets=1)
    assert store.create_marks(generation, {0: checkpoint("", 0)})
    assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))

    async def took(bell: AsyncBell, seconds: float) -> float:
        began = time.monotonic()
        await bell.wait(seconds)
        bell.close()
        return time.monotonic() - began

    async def hear() -> None:
        bells = [await store.alisten(generation, checkpoint("", at).position) for at in range(1, 101)]
        assert await asyncio.to_thread(store.flush, [flush_of(generation, 0, "", "t", at=30)])
        assert max(await asyncio.gather(*(took(bell, SOON) for bell in bells[:30]))) < SOON
        assert min(await asyncio.gather(*(took(bell, 0.3) for bell in bells[30:]))) >= 0.3

    asyncio.run(hear())


def test_a_subscription_that_was_cut_is_made_again(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    tail, position = bench.settle(), late(bench)
    reader = bench.views[household_spend]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.get, "h1", after=position, timeout=SOON)
        wait_until(lambda: subscribers(server) == 1, "a subscription")
        with server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: subscribers(server) == 1, "a new subscription")
        bench.settle(tail)
        assert reading.result(SOON) is not None


def test_nobody_listens_for_ever(
    server: RedisServer, store: RedisViewStore, waits: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "IDLE_SECONDS", 0.2)
    bench = bench_on(store, household_spend)
    for _ in range(2):
        assert read_while_folding(bench, blocking, waits) < SOON
        wait_until(lambda: subscribers(server) == 0, "the end of the subscription")


def test_a_view_that_does_not_get_there_is_stale_with_both_positions(store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend, open_baskets)
    bench.settle()
    position = late(bench)
    for view in (household_spend, open_baskets):
        reader: Reader[Any, Any] = bench.views[view]
        reads: list[Callable[[Reader[Any, Any]], object]] = [
            lambda one: one.get("late", after=position, timeout=0.2),
            lambda one: asyncio.run(one.aget("late", after=position, timeout=0.2)),
            lambda one: one.wait_reached(position, timeout=0.2),
        ]
        for read in reads:
            with pytest.raises(StaleViewError, match=f"not yet at .*leftfold run {view.name}") as caught:
                read(reader)
            assert str(position) in str(caught.value)


def test_a_dead_server_fails_those_who_wait(server: RedisServer) -> None:
    store = RedisViewStore(server.settings)
    bench = bench_on(store, household_spend)
    bench.settle()
    position, reader = late(bench), bench.views[household_spend]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(reader.get, "h1", after=position, timeout=SOON)
        wait_until(lambda: subscribers(server) == 1, "a subscription")
        server.kill()
        try:
            with pytest.raises(InfrastructureError, match="leftfold up"):
                reading.result(SOON)
        finally:
            server.start()
    store.close()


def test_a_watcher_of_an_idle_view_asks_for_little(server: RedisServer, store: RedisViewStore) -> None:
    bench = bench_on(store, household_spend)
    bench.settle()
    watch = bench.views[household_spend].watch(timeout=1.0)
    assert list(watch) == []
    with counted(server) as counts:
        assert list(bench.views[household_spend].watch(timeout=1.0)) == []
    assert counts["xrange"] + counts.get("xrevrange", 0) <= 6 * 16, "it read its streams more often than it was woken"
