"""Bulk rows land only while their bucket is `bulk`, on a server and in a cluster; each fence has a twin without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from redis.crc import key_slot

from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.ports.bulk import BucketResult, BulkRow
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, keys_with
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import Line, new_marked, rows, slot_of
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers

INDEXES = ("color",)
BUCKETS = 4
SENDS = range(1, 7)
"""Of one attempt: a look at the checkpoint, three chunks, another look, the note that the bucket is whole."""


class Unchecked(RedisBulkSink):
    """Does not look at the phase."""

    def may_write(self, phase: bytes | None) -> bool:
        """Writes into whatever is there."""
        return True


@pytest.fixture
def of_either(either: RedisServer | ClusterSet, stores: Callable[..., RedisViewStore]) -> RedisViewStore:
    return stores(either.settings)


@pytest.fixture
def of_cluster(cluster: ClusterSet, stores: Callable[..., RedisViewStore]) -> RedisViewStore:
    return stores(cluster.settings)


def sink_of(store: RedisViewStore) -> RedisBulkSink:
    return RedisBulkSink(store._settings)


def load(store: RedisViewStore, generation: Generation, bucket: int, count: int) -> int:
    """A task of its own writes so many rows into a bucket."""
    with sink_of(store) as sink:
        return sink.write(generation, bucket, COLUMNS, INDEXES, bulk_rows(count))


def bulk_rows(count: int, name: str = "r") -> Iterator[BulkRow]:
    """Rows, every third of them red."""
    for number in range(count):
        color = b"red" if number % 3 == 0 else b"blue"
        yield BulkRow(f"{name}{number:05d}", (color, b"%d" % number), number + 1, ("=" + color.decode(),))


def final(*counts: int) -> dict[int, Checkpoint]:
    """Checkpoints behind a load, of buckets with so many rows and of empty ones."""
    counts = (*counts, *[0] * (BUCKETS - len(counts)))
    return {b: replace(checkpoint("sealed", 9), rows=count, checksum=7) for b, count in enumerate(counts)}


def test_loaded_buckets_are_sealed_with_what_their_tasks_wrote(of_either: RedisViewStore) -> None:
    store, counts = of_either, (700, 0, 1234, 1)
    generation = new_marked(store, BUCKETS, Phase.BULK)
    for bucket, count in enumerate(counts):
        for _ in range(2 if bucket == 0 else 1):  # a task that runs twice changes nothing
            assert load(store, generation, bucket, count) == count
    store.seal(generation, final(*counts))
    assert store.checkpoints(generation) == final(*counts)
    assert store.checkpoints(generation)[0].phase is Phase.SEALED
    assert [len(rows(store, generation, bucket)) for bucket in range(BUCKETS)] == list(counts)
    assert store.keys(generation, 2, "r01200", 99) == [f"r{number:05d}" for number in range(1201, 1234)]
    assert len(keys_with(store, generation, 2, "color", "=red")) == 412
    snapshot = store.read(generation, [(0, "r00007")])
    assert snapshot.rows == ({b"color": b"blue", b"size": b"7", b"@version": b"8"},)


@pytest.mark.parametrize("made", [RedisBulkSink, Unchecked], ids=["", "twin"])
def test_a_late_task_is_fenced_by_the_seal(of_either: RedisViewStore, made: type[RedisBulkSink]) -> None:
    """The twin does not look at the phase."""
    store = of_either
    generation = new_marked(store, BUCKETS, Phase.BULK)
    store.seal(generation, final())
    with made(store._settings) as late:
        if made is Unchecked:
            late.write(generation, 2, COLUMNS, INDEXES, bulk_rows(1))
        else:
            with pytest.raises(Fenced, match=r"bucket 2 of .* is sealed, not bulk"):
                late.write(generation, 2, COLUMNS, INDEXES, bulk_rows(1))
    assert rows(store, generation) == (["r00000"] if made is Unchecked else [])
    with pytest.raises(Fenced, match="another process sealed"):
        store.seal(generation, final())


def test_a_chunk_under_way_when_its_bucket_is_sealed_is_not_written(of_either: RedisViewStore) -> None:
    store = of_either
    generation = new_marked(store, BUCKETS, Phase.BULK)
    load(store, generation, 1, 500)

    def speculative() -> Iterator[BulkRow]:
        yield from bulk_rows(500)
        yield BulkRow("late", (b"red", b""), 1, ("=red",))
        store.seal(generation, final(0, 500))

    with sink_of(store) as sink, pytest.raises(Fenced, match="bucket 1"):
        sink.write(generation, 1, COLUMNS, INDEXES, speculative())
    assert store.read(generation, [(1, "late")]).rows == (None,)
    assert len(rows(store, generation)) == 500


def test_a_generation_that_is_removed_fences_its_tasks(of_either: RedisViewStore) -> None:
    store = of_either
    generation, other = (new_marked(store, BUCKETS, Phase.BULK) for _ in range(2))
    with pytest.raises(ContractError, match=f"has {BUCKETS} buckets"):
        store.seal(generation, {0: final()[0]})
    with sink_of(store) as sink:
        sink.write(generation, 3, COLUMNS, INDEXES, bulk_rows(1700))
        store.unlink(generation)
        assert store.checkpoints(generation) == {}
        with pytest.raises(Fenced, match="is missing, not bulk"):
            sink.write(generation, 1, COLUMNS, INDEXES, bulk_rows(1))
        assert sink.write(other, 0, COLUMNS, INDEXES, bulk_rows(3)) == 3, "it serves other buckets"
    assert store.create_marks(generation, {1: checkpoint("", 0)})
    assert not store.create_marks(generation, {b: checkpoint("", 0) for b in range(BUCKETS)})
    assert set(store.checkpoints(generation)) == {1}, "those made before it was noticed are taken back"


def test_every_chunk_is_one_write_and_rows_of_any_size_get_through(server: RedisServer, store: RedisViewStore) -> None:
    generation, line = new_marked(store, 2, Phase.BULK), Line()
    large = [BulkRow(f"r{n}", (b"\r\n%d\0" * 300_000, b"")) for n in range(20)]
    with RedisBulkSink(server.settings, line.connect) as sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(5000))
        assert line.writes == 1 + 10
        assert sink.write(generation, 1, COLUMNS, (), large) == 20
    assert store.read(generation, [(1, "r19")]).rows == ({b"color": large[0].fields[0], b"size": b""},)


def test_rows_that_the_server_lost_are_noticed_at_the_seal(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_marked(store, BUCKETS, Phase.BULK)
    saved = server.saved()
    load(store, generation, 0, 10)
    server.kill()
    server.restore(saved)
    server.start()
    with pytest.raises(
        InfrastructureError, match=r"holds 0 rows where its tasks wrote 10; .* leftfold rebuild \w+ --fresh"
    ):
        store.seal(generation, final(10))
    assert store.checkpoints(generation)[0].phase is Phase.BULK


def test_a_connection_lost_on_the_way_is_an_error_and_the_next_write_connects_again(
    server: RedisServer, store: RedisViewStore
) -> None:
    line, generation = Line(), new_marked(store, BUCKETS, Phase.BULK)

    def cut() -> Iterator[BulkRow]:
        yield from bulk_rows(600)
        line.let_through = 0.5
        yield from bulk_rows(600, "s")

    with RedisBulkSink(server.settings, line.connect) as sink:
        with pytest.raises(InfrastructureError, match="not reachable"):
            sink.write(generation, 0, COLUMNS, INDEXES, cut())
        assert len(rows(store, generation, 0)) == 500
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(600))
    assert len(rows(store, generation, 0)) == 600


class Overtaken(RedisBulkSink):
    """A sink that lets another attempt run right before one of its sends."""

    def __init__(self, store: RedisViewStore, send: int, other: Callable[[], object]) -> None:
        super().__init__(store._settings)
        self._left, self._other = send, other

    def _send(self, checkpoint: bytes, commands: list[bytes]) -> None:
        self._left -= 1
        if self._left == 0:
            self._other()
        super()._send(checkpoint, commands)


def attempt(sink: RedisBulkSink, generation: Generation, time: str) -> BucketResult:
    """Writes a bucket to its end; the time says which attempt of its task it was."""
    with sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1100))
        return sink.finish(generation, BucketResult(0, 7, 1100, time))


@pytest.mark.parametrize("dies", [False, True], ids=["the other is faster", "the other dies"])
def test_of_several_attempts_of_a_task_the_first_result_that_is_noted_counts(store: RedisViewStore, dies: bool) -> None:
    for send in SENDS:
        generation = new_marked(store, 2, Phase.BULK)
        other = (
            (lambda g=generation: load(store, g, 0, 550))
            if dies
            else (lambda g=generation: attempt(sink_of(store), g, "faster"))
        )
        expected = "slower" if dies else "faster"
        assert attempt(Overtaken(store, send, other), generation, "slower").time == expected, send
        assert store.finished(generation)[0].time == expected
        with sink_of(store) as sink:
            sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1, "other"))
        store.seal(generation, {b: final(1100)[b] for b in range(2)})
        assert len(rows(store, generation)) == 1100, "a bucket that is whole is not written again"


def test_rows_and_lists_share_the_slot_of_their_bucket(store: RedisViewStore) -> None:
    generation = new_marked(store, 2)
    keys = BucketKeys(generation, 1)
    names = [keys.checkpoint, keys.listed, keys.index("color"), keys.row("a"), keys.row("%7Bb%7D")]
    assert len({key_slot(name) for name in names}) == 1
    assert names[3].decode() == f"v:{{{generation.view}:{generation.id}:1}}:a"
    assert names[2].decode() == f"v:{{{generation.view}:{generation.id}:1}}#color"


def test_what_is_whole_is_noted_on_every_node_and_follows_a_slot_that_moved(
    cluster: ClusterSet, of_cluster: RedisViewStore
) -> None:
    store, generation = of_cluster, new_marked(of_cluster, BUCKETS, Phase.BULK)
    results = {bucket: BucketResult(bucket, rows=9, time="2026-01-01T00:00:00Z") for bucket in range(BUCKETS)}
    with sink_of(store) as sink:
        for bucket, result in results.items():
            sink.write(generation, bucket, COLUMNS, INDEXES, bulk_rows(9))
            with cluster.moving(slot_of(generation, bucket)):
                pass
            assert sink.finish(generation, result) == result
        assert store.finished(generation) == results
        assert len(rows(store, generation)) == 9 * BUCKETS
        store.seal(generation, final(*[9] * BUCKETS))
        assert store.finished(generation) == {}
        with pytest.raises(Fenced, match="bucket 1 .* is sealed, not bulk"):
            sink.finish(generation, results[1])


def test_in_a_cluster_a_late_task_is_fenced_by_the_seal_of_its_own_bucket(of_cluster: RedisViewStore) -> None:
    """Bucket 3 holds other rows than its checkpoint says, so only those before it are sealed."""
    store, generation = of_cluster, new_marked(of_cluster, BUCKETS, Phase.BULK)
    with pytest.raises(InfrastructureError, match="bucket 3 .* holds 0 rows where its tasks wrote 9"):
        store.seal(generation, final(0, 0, 0, 9))
    phases = [found.phase for _, found in sorted(store.checkpoints(generation).items())]
    assert phases == [Phase.SEALED] * 3 + [Phase.BULK]
    for bucket in range(3):
        with pytest.raises(Fenced, match=rf"bucket {bucket} of .* is sealed, not bulk"):
            load(store, generation, bucket, 1)
    assert rows(store, generation) == []
    assert load(store, generation, 3, 9) == 9


def test_a_slot_that_moves_in_the_middle_of_a_load_takes_the_rest_along(
    cluster: ClusterSet, of_cluster: RedisViewStore
) -> None:
    store, generation = of_cluster, new_marked(of_cluster, BUCKETS, Phase.BULK)

    def moved() -> Iterator[BulkRow]:
        yield from bulk_rows(1100)
        with cluster.moving(slot_of(generation, 0)):
            pass
        yield from bulk_rows(1100, "s")

    with sink_of(store) as sink:
        assert sink.write(generation, 0, COLUMNS, INDEXES, moved()) == 2200
    store.seal(generation, final(2200))
    assert len(rows(store, generation)) == 2200
    assert len(keys_with(store, generation, 0, "color", "=red")) == 734
