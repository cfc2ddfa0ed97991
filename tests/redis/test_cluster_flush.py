"""In a cluster each bucket is written all or none, whoever overtakes and whatever dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from leftfold.errors import InfrastructureError
from leftfold.ports.flush import BucketFlush, Generation, Registry
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import connect
from leftfold.redis.flusher import Flusher, Flushers
from leftfold.testing.contracts.readers import flush_of, row
from tests.redis.cluster_set import ClusterSet
from tests.redis.clustered import BUCKETS, flushes, has_rows, new_spread, rows, slot_of, tokens
from tests.redis.sockets import Line
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


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
def generation(cluster: ClusterSet, store: RedisViewStore) -> Generation:
    """An empty generation with buckets on every master."""
    return new_spread(cluster, store)


def test_a_steady_flush_is_one_write_per_bucket(cluster: ClusterSet, generation: Generation) -> None:
    line = Line()
    store = RedisViewStore(cluster.settings, line.connect)
    writes = []
    for number in range(4):
        before = "" if number == 0 else f"t{number - 1}"
        assert store.flush(flushes(generation, before, f"t{number}", f"r{number}-"))
        writes.append(line.writes)
    assert [after - before for before, after in pairwise(writes)] == [BUCKETS] * 3
    store.close()


def test_every_bucket_is_sent_before_any_answer_is_awaited(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    """The node of the first bucket answers no write; the others have theirs meanwhile."""
    assert store.flush(flushes(generation, "", "t1", "a"))
    first = cluster.owner(slot_of(generation, 0))
    others = [b for b in range(BUCKETS) if cluster.owner(slot_of(generation, b)) is not first]
    with first.client() as client:
        client.client_pause(60_000, all=False)
        try:
            flight = store.begin_flush(flushes(generation, "t1", "t2", "b"))
            for bucket in others:
                wait_until(partial(has_rows, store, generation, bucket, "ab"), f"bucket {bucket}")
            assert rows(store, generation, 0) == ["a0"]
        finally:
            client.client_unpause()
    assert flight.landed()


def test_an_overtaken_writer_writes_to_no_bucket(store: RedisViewStore, generation: Generation) -> None:
    assert store.flush(flushes(generation, "", "t1", "a"))
    assert store.flush([flush_of(generation, BUCKETS - 1, "t1", "other")])
    assert not store.flush(flushes(generation, "t1", "t2", "late"))
    assert tokens(store, generation) == ["t1"] * (BUCKETS - 1) + ["other"]


def test_a_writer_overtaken_in_one_bucket_while_it_flushes_has_written_the_others(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    other, looks = RedisViewStore(cluster.settings), list[str]()

    class Overtaken(Flusher):
        def has_expected_tokens(self, flushes: Sequence[BucketFlush], found: dict[bytes, bytes | None]) -> bool:
            mine = super().has_expected_tokens(flushes, found)
            if flushes[0].bucket == 2:
                looks.append("")
                if len(looks) == 2:
                    assert other.flush([flush_of(generation, 2, "", "other")])
            return mine

    store._flushers = Flushers(cluster.settings, connect, Overtaken, store._topology)
    assert not store.flush(flushes(generation, "", "t1", "a"))
    assert tokens(store, generation) == ["t1", "t1", "other", "t1", "t1", "t1"]
    assert [rows(store, generation, b) for b in (1, 2, 3)] == [["a1"], [], ["a3"]]
    again = [
        replace(f, expected=t)
        for f, t in zip(flushes(generation, "", "t2", "b"), tokens(store, generation), strict=True)
    ]
    assert store.flush(again)
    other.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_node_killed_while_flushes_go_to_it_keeps_whole_flushes_only(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation, seed: int
) -> None:
    """Each flush adds a row, writes another one over and moves the checkpoint; the replica that is promoted has a
    prefix.
    """
    victim, writer = cluster.owner(slot_of(generation, seed)), RedisViewStore(cluster.settings)
    replica, sent = cluster.replica_of(victim), threading.Event()

    def write() -> int:
        number = 0
        while True:
            number += 1
            if number == 20:
                sent.set()
            try:
                if not writer.flush([numbered(generation, b, number) for b in range(BUCKETS)]):
                    return number
            except InfrastructureError:
                return number

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        assert sent.wait(240.0)
        victim.kill()
        last = writing.result()
    cluster.wait_promoted(replica)
    for bucket, found in sorted(store.checkpoints(generation).items()):
        at = found.position.next_offset("shop.events", 0)
        fields = store.read(generation, [(bucket, "a")]).rows[0]
        assert fields is not None
        assert (found.token, fields[b"color"]) == (f"t{at}", b"%d" % at)
        assert len(store.keys(generation, bucket, "", 99_999)) == at + 1
        assert last - 1 <= at <= last or cluster.owner(slot_of(generation, bucket)) is replica
    writer.close()


def test_a_flush_that_the_promoted_replica_never_got_is_noticed(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(flushes(generation, "", "t1", "a"))
    victim = cluster.owner(slot_of(generation, 0))
    gone = [b for b in range(BUCKETS) if cluster.owner(slot_of(generation, b)) is victim]
    cluster.lose(victim, lambda: store.flush(flushes(generation, "t1", "t2", "b")))
    assert not store.flush(flushes(generation, "t2", "t3", "c")), "the connection was lost"
    assert not store.flush(flushes(generation, "t3", "t4", "d")), "tokens are older"
    for bucket in range(BUCKETS):
        expected = [f"a{bucket}"] if bucket in gone else [f"{name}{bucket}" for name in "abc"]
        assert rows(store, generation, bucket) == expected
    assert tokens(store, generation) == ["t1" if bucket in gone else "t3" for bucket in range(BUCKETS)]


def test_a_dead_node_is_named_and_the_others_are_read(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(flushes(generation, "", "t1", "a"))
    victim = cluster.owner(slot_of(generation, 0))
    replica = cluster.replica_of(victim)
    other = next(b for b in range(BUCKETS) if cluster.owner(slot_of(generation, b)) is not victim)
    cluster.wait_replicated(victim)
    victim.kill()
    assert not store.flush(flushes(generation, "t1", "t2", "b")), "nobody knows what the dead node did"
    assert rows(store, generation, other) == [f"a{other}", f"b{other}"]
    with pytest.raises(InfrastructureError, match=rf"{victim.port}.*redis-cli --cluster check"):
        store.flush(flushes(generation, "t2", "t3", "c"))
    assert rows(store, generation, other) == [f"a{other}", f"b{other}"], "nothing is sent to some only"
    cluster.wait_promoted(replica)
    assert len(store.checkpoints(generation)) == BUCKETS
    assert store.change_registry(generation.view, Registry(), Registry().with_generation(generation))


def numbered(generation: Generation, bucket: int, number: int) -> BucketFlush:
    """The flush that takes one row and the checkpoint to a number, and adds a row."""
    expected = "" if number == 1 else f"t{number - 1}"
    change = row("a")._replace(fields=(b"%d" % number, b"S"))
    return flush_of(generation, bucket, expected, f"t{number}", change, row(f"r{number:05d}"), at=number)
