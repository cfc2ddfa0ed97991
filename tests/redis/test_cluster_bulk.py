"""Bulk loads into a cluster: each bucket is sealed by itself, and no late chunk lands behind its seal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis.crc import key_slot

from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.ports.bulk import BucketResult, BulkRow
from leftfold.ports.flush import Generation, Phase
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, new_generation
from tests.redis.cluster_set import ClusterSet
from tests.redis.test_bulk_sink import INDEXES, Unchecked, bulk_rows, final

pytestmark = pytest.mark.servers

BUCKETS = 4


@pytest.fixture(autouse=True)
def everything_runs(cluster: ClusterSet) -> None:
    """Every test begins with a cluster that is whole."""
    cluster.bring_back()


@pytest.fixture
def store(cluster: ClusterSet) -> Iterator[RedisViewStore]:
    """A store on it."""
    store = RedisViewStore(cluster.settings)
    yield store
    store.close()


@pytest.fixture
def sink(cluster: ClusterSet) -> Iterator[RedisBulkSink]:
    """A task's sink."""
    with RedisBulkSink(cluster.settings) as sink:
        yield sink


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    """A generation that is being loaded."""
    generation = new_generation(BUCKETS).in_phase(Phase.BULK)
    assert store.create_marks(generation, {b: replace(checkpoint("", 0), phase=Phase.BULK) for b in range(BUCKETS)})
    return generation


def slot_of(generation: Generation, bucket: int) -> int:
    """Where a bucket is."""
    return int(key_slot(BucketKeys(generation, bucket).checkpoint))


def test_buckets_on_every_node_are_loaded_and_sealed(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    counts = [700, 0, 1234, 1]
    for bucket, count in enumerate(counts):
        assert sink.write(generation, bucket, COLUMNS, INDEXES, bulk_rows(count)) == count
    store.seal(generation, {bucket: final(count) for bucket, count in enumerate(counts)})
    assert store.checkpoints(generation) == {bucket: final(count) for bucket, count in enumerate(counts)}
    assert [len(store.keys(generation, bucket, "", 9999)) for bucket in range(BUCKETS)] == counts
    assert len(store.found(generation, 2, "color", "=red")) == 412


def test_what_is_whole_is_noted_on_every_node_and_follows_a_slot_that_moved(
    cluster: ClusterSet, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    results = {bucket: BucketResult(bucket, rows=9, time="2026-01-01T00:00:00Z") for bucket in range(BUCKETS)}
    for bucket, result in results.items():
        sink.write(generation, bucket, COLUMNS, INDEXES, bulk_rows(9))
        with cluster.moving(slot_of(generation, bucket)):
            pass
        assert sink.finish(generation, result) == result
    assert store.finished(generation) == results
    assert [len(store.keys(generation, bucket, "", 99)) for bucket in range(BUCKETS)] == [9] * BUCKETS
    store.seal(generation, dict.fromkeys(range(BUCKETS), final(9)))
    assert store.finished(generation) == {}
    with pytest.raises(Fenced, match="bucket 1 .* is sealed, not bulk"):
        sink.finish(generation, results[1])


def test_a_late_task_is_fenced_by_the_seal_of_its_own_bucket(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    """Bucket 3 holds other rows than its checkpoint says, so only those before it are sealed."""
    with pytest.raises(InfrastructureError, match="bucket 3 .* holds 0 rows where its tasks wrote 9"):
        store.seal(generation, {b: final(0) for b in range(3)} | {3: final(9)})
    assert [found.phase for _, found in sorted(store.checkpoints(generation).items())] == [Phase.SEALED] * 3 + [
        Phase.BULK
    ]
    for bucket in range(3):
        with pytest.raises(Fenced, match=rf"bucket {bucket} of .* is sealed, not bulk"):
            sink.write(generation, bucket, COLUMNS, INDEXES, bulk_rows(1))
        assert store.keys(generation, bucket, "", 9) == []
    assert sink.write(generation, 3, COLUMNS, INDEXES, bulk_rows(9)) == 9


def test_twin_without_the_phase_a_late_task_writes_behind_the_seal(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    store.seal(generation, {b: final(0) for b in range(BUCKETS)})
    with Unchecked(cluster.settings) as late:
        late.write(generation, 2, COLUMNS, INDEXES, bulk_rows(1))
    assert store.keys(generation, 2, "", 9) == ["r00000"]


def test_a_chunk_under_way_when_its_bucket_is_sealed_is_not_written(
    cluster: ClusterSet, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    with RedisBulkSink(cluster.settings) as first:
        first.write(generation, 1, COLUMNS, INDEXES, bulk_rows(500))

    def speculative() -> Iterator[BulkRow]:
        yield from bulk_rows(500)
        yield BulkRow("late", (b"red", b""), 1, ("=red",))
        store.seal(generation, {b: final(500 if b == 1 else 0) for b in range(BUCKETS)})

    with pytest.raises(Fenced, match="bucket 1"):
        sink.write(generation, 1, COLUMNS, INDEXES, speculative())
    assert len(store.keys(generation, 1, "", 999)) == 500


def test_a_slot_that_moves_in_the_middle_of_a_load_takes_the_rest_along(
    cluster: ClusterSet, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    def moved() -> Iterator[BulkRow]:
        yield from bulk_rows(1100)
        with cluster.moving(slot_of(generation, 0)):
            pass
        yield from bulk_rows(1100, "s")

    assert sink.write(generation, 0, COLUMNS, INDEXES, moved()) == 2200
    store.seal(generation, {b: final(2200 if b == 0 else 0) for b in range(BUCKETS)})
    assert len(store.keys(generation, 0, "", 9999)) == 2200
    assert len(store.found(generation, 0, "color", "=red")) == 734


def test_a_seal_that_a_failover_took_back_leaves_no_mark(
    cluster: ClusterSet, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    """The registry, on another node, may say sealed all the same; folding from such a checkpoint would count rows
    twice.
    """
    sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(3))
    victim = cluster.owner(slot_of(generation, 0))
    cluster.lose(victim, lambda: store.seal(generation, {b: final(3 if b == 0 else 0) for b in range(BUCKETS)}))
    sealed = generation.in_phase(Phase.SEALED)
    lost = {
        b
        for b in range(BUCKETS)
        if cluster.owner(slot_of(generation, b)).port == cluster.owner(slot_of(generation, 0)).port
    }
    assert set(store.checkpoints(sealed)) == set(range(BUCKETS)) - lost
    assert 0 not in store.read(sealed, [(0, "r00000")]).checkpoints
    assert store.checkpoints(generation)[0].phase is Phase.BULK, (
        "twin: taken for a mark, it says that nothing is folded yet"
    )
    assert store.checkpoints(generation)[0].position.offsets == checkpoint("", 0).position.offsets


def test_removal_and_marks_work_across_nodes(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    with pytest.raises(ContractError, match=f"has {BUCKETS} buckets"):
        store.seal(generation, {0: final(0)})
    sink.write(generation, 3, COLUMNS, INDEXES, bulk_rows(1700))
    store.unlink(generation)
    assert store.checkpoints(generation) == {}
    with pytest.raises(Fenced, match="is missing, not bulk"):
        sink.write(generation, 1, COLUMNS, INDEXES, bulk_rows(1))
    assert store.create_marks(generation, {1: checkpoint("", 0)})
    assert not store.create_marks(generation, {b: checkpoint("", 0) for b in range(BUCKETS)})
    assert set(store.checkpoints(generation)) == {1}, "those made before it was noticed are taken back"
