"""What no registry lists is found on every master of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.engine.views.cleanup import orphans, remove_orphans
from leftfold.ports.flush import Generation
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.topology import ClusterTopology
from leftfold.testing.contracts.readers import checkpoint
from tests.redis.cluster_set import ClusterSet
from tests.redis.clustered import flushes, new_spread, rows, slot_of

pytestmark = pytest.mark.servers


@pytest.fixture
def store(cluster: ClusterSet) -> Iterator[RedisViewStore]:
    """A store on an empty cluster."""
    cluster.empty()
    store = RedisViewStore(cluster.settings)
    yield store
    store.close()


def test_a_generation_without_a_registry_is_removed_from_every_master(
    cluster: ClusterSet, store: RedisViewStore
) -> None:
    lost, live = new_spread(cluster, store), new_spread(cluster, store)
    for generation in lost, live:
        assert store.flush(flushes(generation, "", "t", "a"))
    before = store.registry(live.view)
    assert store.change_registry(live.view, before, before.with_generation(live))
    assert [(orphan.id, orphan.buckets) for orphan in orphans(store, [lost.view]).found] == [(lost.id, lost.buckets)]
    assert [orphan.id for orphan in remove_orphans(store, lost.view)] == [lost.id]
    assert left_of(cluster, lost) == []
    assert [rows(store, live, bucket) for bucket in range(live.buckets)] == [[f"a{b}"] for b in range(live.buckets)]


def test_one_bucket_on_any_master_is_enough(cluster: ClusterSet, store: RedisViewStore) -> None:
    lost = one_per_master(cluster, store)
    assert set(store.stored([lost[0].view]).buckets) == {(one.view, one.id) for one in lost}


def test_twin_a_look_at_one_master_misses_the_others(
    cluster: ClusterSet, store: RedisViewStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, everywhere = one_per_master(cluster, store), ClusterTopology.masters

    def one_of(self: ClusterTopology) -> list[RedisSettings]:
        return everywhere(self)[:1]

    monkeypatch.setattr(ClusterTopology, "masters", one_of)
    assert len(set(store.stored([lost[0].view]).buckets)) == 1


def one_per_master(cluster: ClusterSet, store: RedisViewStore) -> list[Generation]:
    """Three generations of one view with one bucket each, on three masters, in no registry."""
    found: dict[int, Generation] = {}
    for number in range(1, 200):
        generation = Generation("things", f"{number}-0000", "h", False, 1, {"t": 1})
        owner = cluster.owner(slot_of(generation, 0)).port
        if owner not in found:
            assert store.create_marks(generation, {0: checkpoint("", 0)})
            found[owner] = generation
    assert len(found) == 3
    return list(found.values())


def left_of(cluster: ClusterSet, generation: Generation) -> list[bytes]:
    """Its keys on any node."""
    found: list[bytes] = []
    for node in cluster.nodes:
        with node.client() as client:
            found += client.scan_iter(f"v:{{{generation.view}:{generation.id}:*")
    return found
