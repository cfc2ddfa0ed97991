"""Watching on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from leftfold import ChangesNotKept, InfrastructureError
from leftfold.client import Reader
from leftfold.engine.views.projector import Projector
from leftfold.redis import RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.client.changes_contract import Watches, bench_on
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import out
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


class TestWatchesInRedis(Watches):
    @pytest.fixture
    def store(self, server: RedisServer) -> Iterator[RedisViewStore]:
        store = RedisViewStore(server.settings)
        yield store
        store.close()


def test_a_stream_keeps_so_many_flushes_and_no_more(server: RedisServer) -> None:
    generation = new_generation(buckets=1)
    store = RedisViewStore(server.settings.model_copy(update={"history": 100}))
    assert store.create_marks(generation, {0: checkpoint("", 0)})
    for number in range(1000):
        before = f"t{number - 1}" if number else ""
        assert store.flush([flush_of(generation, 0, before, f"t{number}", row("a"), at=number)])
    with server.client() as client:
        # Redis trims whole nodes of a hundred entries.
        assert 100 <= client.xlen(BucketKeys(generation, 0).changes) <= 300
    store.close()


def test_changes_that_are_not_kept_any_more_are_told_and_a_watch_from_now_goes_on(server: RedisServer) -> None:
    store = RedisViewStore(server.settings.model_copy(update={"history": 1}))
    bench = bench_on(store, household_spend)
    tail, reader = bench.settle(), bench.views[household_spend]
    start, away = reader.describe().position, reader.watch(timeout=10.0)
    for number in range(250):
        bench.write(out(f"b{number}", "h", p=1))
        bench.settle(tail)
    with pytest.raises(ChangesNotKept):
        next(away)
    with pytest.raises(ChangesNotKept, match=r"take describe\(\).position, then read all rows with items\(\)"):
        reader.watch(after=start)
    watch = reader.watch(after=reader.describe().position, timeout=0.0)
    bench.write(out("more", "h", p=1))
    bench.settle(tail)
    assert [one.key for one in watch] == ["h"]
    store.close()


def test_a_store_that_went_back_in_time_is_watched_on(server: RedisServer) -> None:
    store = RedisViewStore(server.settings)
    bench = bench_on(store, household_spend)
    tail, reader = bench.settle(), bench.views[household_spend]
    watch = reader.watch(timeout=10.0)
    bench.write(out("a", "h1", p=1))
    bench.settle(tail)
    assert next(watch).key == "h1"
    saved = server.saved()
    bench.write(out("b", "h1", p=2))
    bench.settle(tail)
    second = next(watch)
    server.kill()
    server.restore(saved)
    server.start()
    bench.write(out("c", "h1", p=4))
    whole = Spend(Decimal(7), "base")
    bench.until(tail, lambda: steps(tail) and reader.get("h1") == whole)
    assert [one.row for one in reader.watch(after=second.position, timeout=0.0)] == [whole]
    assert next(watch).row == whole, "the entry seen last is gone, so it finds its place by position"
    watch.close()
    store.close()


def test_a_watcher_that_goes_on_after_each_death_of_the_server_misses_nothing(server: RedisServer) -> None:
    store = RedisViewStore(server.settings)
    bench = bench_on(store, household_spend)
    tail, reader = bench.settle(), bench.views[household_spend]
    begin, rows, done = reader.describe().position, dict[str, Spend | None](), threading.Event()

    def watch() -> None:
        position = begin
        while True:
            over = done.is_set()
            try:
                for found in reader.watch(after=position, timeout=0.2):
                    rows[found.key], position = found.row, found.position
            except InfrastructureError:
                continue
            if over:
                return

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            for number in range(60):
                bench.write(out(f"b{number}", f"h{number % 7}", p=1))
                if number % 20 == 10:
                    server.kill()
                    server.start()
                steps(tail)
            bench.until(tail, lambda: steps(tail) and folded(reader) == 60)
        finally:
            done.set()
        watching.result(240.0)
    assert rows == dict(reader.items())
    store.close()


def folded(reader: Reader[Spend]) -> int:
    """How many checkouts are in the rows."""
    try:
        return int(sum(row.total for _, row in reader.items()))
    except InfrastructureError:
        return -1


def steps(tail: Projector) -> bool:
    """A step of a projector whose store may be away."""
    try:
        return tail.step(0.0) >= 0
    except InfrastructureError:
        return False
