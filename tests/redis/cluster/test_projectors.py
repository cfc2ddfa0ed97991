"""Projectors, rebuilds and readers in a cluster that changes: rows end as the log's, and are never seen older."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from redis.crc import key_slot

from leftfold import memory
from leftfold.client import Views
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.projector import Projector
from leftfold.errors import ViewNotBuilt
from leftfold.memory import World
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.redis.flusher import Flusher
from leftfold.redis.keys import registry_key
from tests.domains.ledger import Move, Open, app, by_owner, by_tag, summary
from tests.engine.committed_log import CommittedLog
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import Blind, Repeating, owners_of, slot_of
from tests.redis.ledgers import (
    KEY,
    NOW,
    Watch,
    assert_equal_to_the_log,
    busy,
    happen,
    heals_after,
    projector_on,
    settle,
)

pytestmark = pytest.mark.servers


@pytest.fixture
def world(cluster: ClusterSet) -> Iterator[World]:
    """A log of its own, and an empty cluster."""
    cluster.empty()
    with memory(app, now=NOW) as world:
        yield world


def live(store: RedisViewStore) -> Generation:
    found = store.registry(summary.name).live_of(summary.hash)
    assert found is not None
    return found


def begin(world: World, projector: Projector, count: int = 100) -> None:
    """A history, and the row that is watched."""
    world.client.send(Open(ledger=KEY, owner="o"))
    happen(world, 1, count)
    settle(projector)


def move_on(world: World, number: int) -> None:
    """The watched row and some others change."""
    world.client.send(Move(ledger=KEY, owner="o", amount=Decimal(1)))
    happen(world, number, 5)


def test_two_projectors_of_one_view_do_no_harm(
    cluster: ClusterSet, store: RedisViewStore, stores: Callable[..., RedisViewStore], world: World
) -> None:
    """They share the buckets, whose checkpoints part when one of them leaves; the other takes its share over."""
    one, other = projector_on(world, store), projector_on(world, stores(cluster.settings))
    for seed in range(2):
        happen(world, seed)
        for _ in range(15):
            one.step(0.0)
            other.step(0.0)
    other.close()
    happen(world, 9, 30)
    settle(one)
    assert_equal_to_the_log(world, store)
    one.close()


@pytest.mark.parametrize("made", [Flusher, pytest.param(Repeating, marks=pytest.mark.faults), Blind])
def test_a_projector_heals_when_a_promoted_replica_lacks_the_last_writes(
    cluster: ClusterSet, store: RedisViewStore, world: World, made: type[Flusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin is blind: it compares no tokens and looks for none, and the rows of the lost writes stay wrong."""

    def lose(happens: Callable[[], object]) -> None:
        cluster.lose(cluster.owner(slot_of(live(store), 0)), happens)

    assert heals_after(lose, world, store, made, monkeypatch) is (made is not Blind)


def test_a_node_dies_under_a_running_projector_and_no_reader_gets_anything_older(
    cluster: ClusterSet, store: RedisViewStore, world: World
) -> None:
    """Its replica is up to date: what was acknowledged is there, and the projector continues."""
    projector = projector_on(world, store)
    begin(world, projector)
    victim = cluster.owner(slot_of(live(store), 0))
    replica = cluster.replica_of(victim)
    with Watch(cluster.settings) as watch:
        with busy(lambda _: projector.step(0.002)):
            for number in range(10):
                move_on(world, number)
        settle(projector)
        cluster.wait_replicated(victim)
        victim.kill()
        cluster.wait_promoted(replica)
        with busy(lambda _: projector.step(0.002)):
            for number in range(10, 20):
                move_on(world, number)
        settle(projector)
        watch.wait_end(world)
    assert_equal_to_the_log(world, store)
    projector.close()


def test_slots_move_under_a_running_projector_and_no_reader_gets_anything_missing_mixed_or_older(
    cluster: ClusterSet, store: RedisViewStore, world: World
) -> None:
    projector = projector_on(world, store)
    begin(world, projector)
    generation = live(store)
    slots = [slot_of(generation, bucket) for bucket in range(generation.buckets)]
    slots += [int(key_slot(registry_key(summary.name)))]
    with Watch(cluster.patient_settings) as watch, busy(lambda _: projector.step(0.002)):
        for number, slot in enumerate(slots):
            with cluster.moving(slot) as move:
                move_on(world, 2 * number)
                for key in move.left():
                    move.carry(key)
                    move_on(world, 2 * number + 1)
    settle(projector)
    assert len(watch.seen) > 20
    assert watch.unreachable == 0
    assert_equal_to_the_log(world, store)
    projector.close()


def rebuild(world: World, cluster: ClusterSet, store: RedisViewStore, view: Any) -> Rebuild:
    """A rebuild in this process, of the log in memory into the cluster."""
    return Rebuild(
        view,
        store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=lambda: RedisBulkSink(cluster.settings),
        options=RebuildOptions(keep=0, patience=0.5),
    )


def test_a_swap_that_a_failover_takes_back_ends_with_the_rows_of_the_log(
    cluster: ClusterSet, store: RedisViewStore, world: World
) -> None:
    """The registry names the replaced and removed generation; a projector finds it missing and builds another."""
    projector = projector_on(world, store)
    begin(world, projector)
    lost = cluster.owner(registry_key(summary.name))
    while all(owner is lost for owner in owners_of(cluster, live(store))):
        store.unlink(live(store))  # the failover would take back its removal as a whole
        settle(projector)
    before, outcomes = live(store), list[str]()

    def swap() -> None:
        outcomes.append(rebuild(world, cluster, store, summary).run().generation)

    cluster.lose(lost, swap)
    assert live(store) == before
    assert len(store.checkpoints(before)) < before.buckets
    with pytest.raises(ViewNotBuilt):
        Views(store)[summary].describe()
    happen(world, 5)
    settle(projector)
    assert live(store).id not in (before.id, *outcomes)
    assert_equal_to_the_log(world, store)
    projector.close()


def test_views_are_rebuilt_while_a_projector_flushes_and_no_reader_gets_anything_missing_mixed_or_older(
    cluster: ClusterSet, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keep=0`: the replaced generation is unlinked at once, under the readers."""
    for seconds in ("_COMPARE_SECONDS", "_LEVEL_SECONDS"):  # on a busy machine the log may never stand still so long
        monkeypatch.setattr(f"leftfold.engine.rebuild.swap.{seconds}", 15.0)
    own = RedisViewStore(cluster.settings)
    projector = projector_on(world, own)
    begin(world, projector, 300)
    before = {view.name: store.registry(view.name).live_of(view.hash) for view in app.views}
    with Watch(cluster.settings) as watch:
        with busy(lambda _: projector.step(0.002)), busy(lambda number: move_on(world, number), 0.01):
            for view in (summary, summary, by_owner, by_tag):
                result = rebuild(world, cluster, store, view).run()
                assert result.swapped, str(result)
                assert result.agreement in (Agreement.EQUAL, Agreement.UNKNOWN)
        settle(projector)
        watch.wait_end(world)
    assert all(store.registry(view.name).live_of(view.hash) != before[view.name] for view in app.views)
    assert_equal_to_the_log(world, store)
    projector.close()
    own.close()
