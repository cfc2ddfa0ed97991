"""Redis keeps what every store promises, as a single server and as a cluster; and how long it keeps changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal

import pytest

from leftfold import ChangesNotKept, InfrastructureError
from leftfold.client import Reader
from leftfold.engine.views.projector import Projector
from leftfold.ports.flush import BucketFlush, Generation, Registry, While
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts import ViewStoreContract
from leftfold.testing.contracts.readers import checkpoint, flush_of, row
from tests.client.changes_contract import Watches, bench_on
from tests.client.search_contract import Searches
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import FoldBench, out
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import new_marked
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers
Open = Callable[[RedisSettings], RedisViewStore]


class TestRedisViewStore(ViewStoreContract, Searches, Watches):
    """On a single server."""

    @pytest.fixture
    def store(self, server: RedisServer, stores: Open) -> RedisViewStore:
        return stores(server.settings)

    @pytest.mark.parametrize("depends", [True, False], ids=["", "twin"])
    def test_the_registry_does_not_change_over_a_flush(
        self, store: ViewStore, generation: Generation, depends: bool
    ) -> None:
        """In a cluster it does: the checkpoint of a bucket and the registry are on different servers there."""

        def holds() -> bool:
            found = store.checkpoints(generation)[0]
            return store.flush([BucketFlush(generation, 0, found.token, checkpoint("next", 1), (), ())])

        if not depends:
            assert holds()
        one, while_ = Registry().with_generation(generation), While(generation, holds)
        assert store.change_registry(generation.view, Registry(), one, while_ if depends else None) is not depends


class TestClusterViewStore(ViewStoreContract, Searches, Watches):
    """On three masters."""

    @pytest.fixture
    def store(self, cluster: ClusterSet, stores: Open) -> RedisViewStore:
        return stores(cluster.settings)


def remembering(server: RedisServer, stores: Open, history: int) -> RedisViewStore:
    """A store that keeps so many flushes; Redis trims whole nodes of ten entries here."""
    with server.client() as client:
        client.config_set("stream-node-max-entries", 10)
    return stores(server.settings.model_copy(update={"history": history}))


def test_a_stream_keeps_so_many_flushes_and_no_more(server: RedisServer, stores: Open) -> None:
    store = remembering(server, stores, 20)
    generation = new_marked(store, 1)
    for number in range(100):
        before = f"t{number - 1}" if number else ""
        assert store.flush([flush_of(generation, 0, before, f"t{number}", row("a"), at=number)])
    with server.client() as client:
        assert 20 <= client.xlen(BucketKeys(generation, 0).changes) <= 40


def followed(store: RedisViewStore) -> tuple[FoldBench, Projector, Reader[Spend]]:
    """A view in the store, its projector and its reader."""
    bench = bench_on(store, household_spend)
    return bench, bench.settle(), bench.views[household_spend]


def test_changes_that_are_not_kept_any_more_are_an_error_and_a_watch_from_now_continues(
    server: RedisServer, stores: Open
) -> None:
    bench, projector, reader = followed(remembering(server, stores, 1))
    start, late = reader.describe().position, reader.watch(timeout=10.0)
    for number in range(30):
        bench.fold(projector, out(f"b{number}", "h", p=1))
    with pytest.raises(ChangesNotKept):
        next(late)
    with pytest.raises(ChangesNotKept, match=r"take describe\(\).position, then read items\(\), and watch from there"):
        reader.watch(after=start)
    watch = reader.watch(after=reader.describe().position, timeout=0.0)
    bench.fold(projector, out("more", "h", p=1))
    assert [one.key for one in watch] == ["h"]


def test_a_store_that_went_back_in_time_is_watched_on(server: RedisServer, stores: Open) -> None:
    bench, projector, reader = followed(stores(server.settings))
    watch = reader.watch(timeout=10.0)
    bench.fold(projector, out("a", "h1", p=1))
    assert next(watch).key == "h1"
    saved = server.saved()
    bench.fold(projector, out("b", "h1", p=2))
    second = next(watch)
    server.kill()
    server.restore(saved)
    server.start()
    bench.write(out("c", "h1", p=4))
    whole = Spend(Decimal(7), "base")
    bench.until(projector, lambda: steps(projector) and reader.get("h1") == whole)
    assert [one.row for one in reader.watch(after=second.position, timeout=0.0)] == [whole]
    assert next(watch).row == whole, "the entry seen last is lost, so it finds its place by position"
    watch.close()


def test_a_watcher_that_continues_after_each_death_of_the_server_misses_nothing(
    server: RedisServer, stores: Open
) -> None:
    bench, projector, reader = followed(stores(server.settings))
    begin, rows, done = reader.describe().position, dict[str, Spend | None](), threading.Event()

    def watch() -> None:
        position, is_over = begin, False
        while not is_over:
            is_over = done.is_set()
            try:
                for found in reader.watch(after=position, timeout=0.2):
                    rows[found.key], position = found.row, found.position
            except InfrastructureError:
                is_over = False

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            for number in range(24):
                bench.write(out(f"b{number}", f"h{number % 7}", p=1))
                if number % 12 == 6:
                    server.kill()
                    server.start()
                steps(projector)
            bench.until(projector, lambda: steps(projector) and folded(reader) == 24)
        finally:
            done.set()
        watching.result(240.0)
    assert rows == dict(reader.items())


def folded(reader: Reader[Spend]) -> int:
    """How many checkouts are in the rows."""
    with suppress(InfrastructureError):
        return int(sum(row.total for _, row in reader.items()))
    return -1


def steps(projector: Projector) -> bool:
    """A step of a projector whose store may be away."""
    with suppress(InfrastructureError):
        return projector.step(0.0) >= 0
    return False
