"""Bulk rows land only while their bucket is `bulk`; each fence has a twin without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis.crc import key_slot

from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.redis import RedisBulkSink, RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, new_generation
from tests.redis.server import RedisServer
from tests.redis.sockets import Line

pytestmark = pytest.mark.servers

INDEXES = ("color",)


class Unchecked(RedisBulkSink):
    """Does not look at the phase."""

    def may_write(self, phase: bytes | None) -> bool:
        """Writes into whatever is there."""
        return True


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    """A generation of two buckets being loaded."""
    generation = new_generation(buckets=2).in_phase(Phase.BULK)
    assert store.create_marks(generation, {b: replace(checkpoint("", 0), phase=Phase.BULK) for b in (0, 1)})
    return generation


@pytest.fixture
def sink(server: RedisServer) -> Iterator[RedisBulkSink]:
    """A task's sink."""
    with RedisBulkSink(server.settings) as sink:
        yield sink


def bulk_rows(count: int, name: str = "r") -> Iterator[BulkRow]:
    """Rows, every third of them red."""
    for number in range(count):
        color = b"red" if number % 3 == 0 else b"blue"
        yield BulkRow(f"{name}{number:05d}", (color, b"%d" % number), number + 1, ("=" + color.decode(),))


def final(rows: int) -> Checkpoint:
    """A checkpoint behind a load."""
    return replace(checkpoint("sealed", 9), rows=rows, checksum=7)


def test_loaded_buckets_are_sealed_with_what_their_tasks_wrote(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    assert sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1234)) == 1234
    assert sink.write(generation, 1, COLUMNS, INDEXES, bulk_rows(0)) == 0
    store.seal(generation, {0: final(1234), 1: final(0)})
    assert store.checkpoints(generation) == {0: final(1234), 1: final(0)}
    assert store.checkpoints(generation)[0].phase is Phase.SEALED
    assert store.keys(generation, 0, "r01200", 99) == [f"r{number:05d}" for number in range(1201, 1234)]
    assert len(store.found(generation, 0, "color", "=red")) == 412
    snapshot = store.read(generation, [(0, "r00007")])
    assert snapshot.rows == ({b"color": b"blue", b"size": b"7", b"@version": b"8"},)


def test_a_task_that_runs_twice_changes_nothing(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    for _ in range(2):
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(700))
    store.seal(generation, {0: final(700), 1: final(0)})


def test_every_chunk_is_one_write(server: RedisServer, generation: Generation) -> None:
    line = Line()
    with RedisBulkSink(server.settings, line.connect) as sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(5000))
    assert line.writes == 1 + 10


def test_rows_of_any_size_get_through(store: RedisViewStore, sink: RedisBulkSink, generation: Generation) -> None:
    rows = [BulkRow(f"r{n}", (b"\r\n%d\0" * 300_000, b"")) for n in range(20)]
    assert sink.write(generation, 0, COLUMNS, (), rows) == 20
    assert store.read(generation, [(0, "r19")]).rows == ({b"color": rows[0].fields[0], b"size": b""},)


def test_a_late_task_is_fenced_by_the_seal(store: RedisViewStore, sink: RedisBulkSink, generation: Generation) -> None:
    store.seal(generation, {0: final(0), 1: final(0)})
    with pytest.raises(Fenced, match=r"bucket 0 of .* is sealed, not bulk"):
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1))
    assert store.keys(generation, 0, "", 9) == []


def test_twin_without_the_phase_a_late_task_writes_behind_the_seal(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    store.seal(generation, {0: final(0), 1: final(0)})
    with Unchecked(server.settings) as sink:
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(1))
    assert store.keys(generation, 0, "", 9) == ["r00000"]


def test_a_chunk_under_way_when_the_seal_comes_is_not_written(
    server: RedisServer, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    with RedisBulkSink(server.settings) as first:
        first.write(generation, 0, COLUMNS, INDEXES, bulk_rows(500))

    def speculative() -> Iterator[BulkRow]:
        yield from bulk_rows(500)
        yield BulkRow("late", (b"red", b""), 1, ("=red",))
        store.seal(generation, {0: final(500), 1: final(0)})

    with pytest.raises(Fenced, match="bucket 0"):
        sink.write(generation, 0, COLUMNS, INDEXES, speculative())
    assert store.read(generation, [(0, "late")]).rows == (None,)
    assert len(store.keys(generation, 0, "", 999)) == 500


def test_a_fenced_sink_serves_other_buckets(store: RedisViewStore, sink: RedisBulkSink, generation: Generation) -> None:
    other = new_generation(buckets=1)
    assert store.create_marks(other, {0: replace(checkpoint("", 0), phase=Phase.BULK)})
    sink.write(other, 0, COLUMNS, INDEXES, bulk_rows(1))
    store.seal(other, {0: final(1)})
    with pytest.raises(Fenced):
        sink.write(other, 0, COLUMNS, INDEXES, bulk_rows(1))
    assert sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(3)) == 3


def test_an_unlinked_generation_fences_its_tasks(
    store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    store.unlink(generation)
    with pytest.raises(Fenced, match="is missing, not bulk"):
        sink.write(generation, 1, COLUMNS, INDEXES, bulk_rows(1))


def test_a_seal_comes_once(store: RedisViewStore, generation: Generation) -> None:
    store.seal(generation, {0: final(0), 1: final(0)})
    with pytest.raises(Fenced, match="another process sealed"):
        store.seal(generation, {0: final(0), 1: final(0)})


def test_a_seal_names_every_bucket(store: RedisViewStore, generation: Generation) -> None:
    with pytest.raises(ContractError, match="has 2 buckets"):
        store.seal(generation, {0: final(0)})


def test_rows_that_the_server_lost_are_noticed_at_the_seal(
    server: RedisServer, store: RedisViewStore, sink: RedisBulkSink, generation: Generation
) -> None:
    saved = server.saved()
    sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(10))
    server.kill()
    server.restore(saved)
    server.start()
    with pytest.raises(InfrastructureError, match="holds 0 rows where its tasks wrote 10"):
        store.seal(generation, {0: final(10), 1: final(0)})
    assert store.checkpoints(generation)[0].phase is Phase.BULK


def test_a_connection_lost_on_the_way_is_an_error_and_the_next_write_connects_again(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    line = Line()

    def cut() -> Iterator[BulkRow]:
        yield from bulk_rows(600)
        line.let_through = 0.5
        yield from bulk_rows(600, "s")

    with RedisBulkSink(server.settings, line.connect) as sink:
        with pytest.raises(InfrastructureError, match="not reachable"):
            sink.write(generation, 0, COLUMNS, INDEXES, cut())
        assert len(store.keys(generation, 0, "", 9999)) == 500
        sink.write(generation, 0, COLUMNS, INDEXES, bulk_rows(600))
    assert len(store.keys(generation, 0, "", 9999)) == 600


def test_rows_and_lists_share_the_slot_of_their_bucket(generation: Generation) -> None:
    keys = BucketKeys(generation, 1)
    names = [keys.checkpoint, keys.listed, keys.index("color"), keys.row("a"), keys.row("%7Bb%7D")]
    assert len({key_slot(name) for name in names}) == 1
    assert names[3].decode() == f"v:{{{generation.view}:{generation.id}:1}}:a"
    assert names[2].decode() == f"v:{{{generation.view}:{generation.id}:1}}#color"
