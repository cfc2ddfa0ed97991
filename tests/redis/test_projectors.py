"""A projector on a real Redis ends with the rows of the log, whatever happened to the server or its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.redis.connection.protocol import SortedSets
from leftfold.redis.flusher import Flusher
from leftfold.redis.keys import BucketKeys
from leftfold.testing import fold
from tests.client.changes_contract import bench_on
from tests.domains.ledger import app, by_owner
from tests.domains.shop import Added, BasketEvent, Opened, Summary, household_spend, open_baskets
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import FoldBench, out
from tests.redis.flushes import Blind
from tests.redis.ledgers import NOW, assert_equal_to_the_log, happen, heals_after, projector_on, settle
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers

HISTORY = (out("b", "h", p=1), out("c", "i", p=2))
LATER: tuple[BasketEvent, ...] = (Opened(basket_id="d", household="h"), out("e", "h", p=3))


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log of its own and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        yield world


@pytest.mark.parametrize("made", [Flusher, Blind], ids=["", "twin"])
def test_a_redis_that_went_back_in_time_heals(
    server: RedisServer, store: RedisViewStore, world: World, made: type[Flusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin compares no tokens and looks for none: what was lost stays lost."""

    def lose(happens: Callable[[], object]) -> None:
        saved = server.saved()
        happens()
        server.kill()
        server.restore(saved)
        server.start()

    assert heals_after(lose, world, store, made, monkeypatch) is (made is Flusher)


def test_twin_where_index_entries_are_not_taken_back_they_go_stale(
    store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = SortedSets.move
    monkeypatch.setattr(SortedSets, "move", lambda self, key, before, after: move(self, key, None, after))
    projector = projector_on(world, store, batch=20, growth=1)
    happen(world, 1)
    settle(projector)
    projector.close()
    with pytest.raises(AssertionError, match="index positive"):
        assert_equal_to_the_log(world, store, by_owner)


@pytest.fixture
def bench(store: RedisViewStore) -> FoldBench:
    bench = bench_on(store, household_spend, open_baskets)
    for event in HISTORY:
        bench.write(event)
    return bench


def damage(server: RedisServer, generation: Generation, bucket: int, *fields: str) -> None:
    with server.client() as client:
        client.hset(BucketKeys(generation, bucket).checkpoint, mapping=dict.fromkeys(fields, "?"))


def assert_rebuilt(server: RedisServer, bench: FoldBench, projector: Any, *events: BasketEvent) -> None:
    """A rebuild replaces the generation, and the same projector folds the new one."""
    lost = bench.live(household_spend)
    again = Rebuild(
        household_spend,
        bench.store,
        open_log=lambda: CommittedLog(bench.log.reader()),
        open_reader=bench.log.reader,
        open_sink=lambda: RedisBulkSink(server.settings),
        options=RebuildOptions(keep=0, patience=0.0),
    )
    assert again.run().swapped
    assert lost.id not in bench.store.registry(household_spend.name).generations
    bench.fold(projector, out("f", "j", p=4))
    assert bench.rows(household_spend) == fold(household_spend, *HISTORY, *events, out("f", "j", p=4))


def assert_only_one_stopped(bench: FoldBench, view: View[Any, Any]) -> None:
    (stopped,) = bench.reports.of("view stopped")
    assert stopped["view"] == view.name
    assert "is unreadable" in stopped["why"]
    assert bench.reports.of("generation lost") == [], "its rows can still be read"


def test_where_a_checkpoint_cannot_be_read_a_new_projector_folds_every_other_view(
    server: RedisServer, bench: FoldBench
) -> None:
    bench.settle().close()
    damage(server, bench.live(household_spend), 3, "position")
    for event in LATER:
        bench.write(event)
    projector = bench.settle()
    assert bench.rows(open_baskets) == {"d": Summary()}
    assert bench.rows(household_spend) == fold(household_spend, *HISTORY)
    assert_only_one_stopped(bench, household_spend)
    assert_rebuilt(server, bench, projector, *LATER)


@pytest.mark.parametrize("events", [LATER, ()], ids=["busy", "idle"])
def test_where_a_checkpoint_becomes_unreadable_a_projector_continues_with_every_other_view(
    server: RedisServer, bench: FoldBench, events: tuple[BasketEvent, ...]
) -> None:
    projector = bench.settle()
    damage(server, bench.live(household_spend), 3, "position", "token")
    for event in events:
        bench.write(event)
    bench.until(projector, lambda: bool(bench.reports.of("view stopped")))
    bench.settle(projector)
    assert bench.rows(open_baskets) == fold(open_baskets, *HISTORY, *events)
    assert_only_one_stopped(bench, household_spend)
    assert_rebuilt(server, bench, projector, *events)


def test_a_projector_waits_while_the_checkpoints_of_another_one_are_unreadable(
    server: RedisServer, bench: FoldBench
) -> None:
    """Only when all shares are there does a new generation go live."""
    with (
        closing(bench.projector(member="behind", lease=60.0, batch=1)) as behind,
        closing(bench.projector(member="ahead", lease=60.0)) as ahead,
    ):
        behind.step(0.0)
        bench.until(ahead, lambda: bool(ahead.writers()) and not ahead.step(0.0))
        (mine,) = [writer for writer in ahead.writers() if writer.view is household_spend]
        damage(server, mine.generation, min(set(range(mine.generation.buckets)) - mine.buckets), "position")
        ahead.step(0.0)
        assert bench.store.registry(household_spend.name).live == {}


def test_fields_of_a_parked_key_that_only_newer_code_knows_are_ignored(server: RedisServer, bench: FoldBench) -> None:
    bench.write(Added(basket_id="d", product="unfoldable", price=HISTORY[0].total))
    bench.settle()
    generation = bench.live(open_baskets)
    before = bench.store.checkpoints(generation)
    (bucket,) = [number for number, checkpoint in before.items() if checkpoint.parked]
    with server.client() as client:
        key = BucketKeys(generation, bucket).checkpoint
        parked = json.loads(client.hget(key, "parked"))
        client.hset(key, "parked", json.dumps({row: {**why, "since": "2027"} for row, why in parked.items()}))
    assert bench.store.checkpoints(generation) == before
