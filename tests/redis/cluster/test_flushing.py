"""In a cluster each bucket is written all or none, whatever overtakes it and whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.model.rights import redis_rules
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import BucketFlush, Generation, Phase, Registry
from leftfold.ports.queries import Rows
from leftfold.redis import RedisBulkSink, RedisViewStore, refuse_eviction
from leftfold.redis.connection.protocol import connect
from leftfold.redis.flusher import Flusher, Flushers
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, flush_of
from tests.cli.shell import Shell
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import BUCKETS, Line, flushes, new_marked, numbered, owners_of, rows, slot_of, tokens
from tests.redis.server import as_user
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def test_a_steady_flush_is_one_write_per_bucket(cluster: ClusterSet, generation: Generation) -> None:
    line = Line()
    store = RedisViewStore(cluster.settings, line.connect)
    writes = []
    for number in range(4):
        assert store.flush(flushes(generation, f"t{number - 1}" if number else "", f"t{number}", f"r{number}-"))
        writes.append(line.writes)
    assert [after - before for before, after in pairwise(writes)] == [BUCKETS] * 3
    store.close()


def test_every_bucket_is_sent_before_any_answer_is_awaited(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    """The node of the first bucket answers no write; the others have theirs meanwhile."""
    assert store.flush(flushes(generation, "", "t1", "a"))
    first, *owners = owners_of(cluster, generation)
    others = [bucket for bucket, owner in enumerate(owners, 1) if owner is not first]
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


def has_rows(store: RedisViewStore, generation: Generation, bucket: int, names: str) -> bool:
    """Whether a bucket has the rows of these flushes and no others."""
    return rows(store, generation, bucket) == [f"{name}{bucket}" for name in names]


def test_a_writer_overtaken_in_one_bucket_while_it_flushes_has_written_the_others(
    cluster: ClusterSet, store: RedisViewStore, stores: Callable[..., RedisViewStore], generation: Generation
) -> None:
    other, looks = stores(cluster.settings), list[str]()

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
    found = tokens(store, generation)
    assert found == ["t1", "t1", "other", "t1", "t1", "t1"]
    assert rows(store, generation, 1, 2, 3) == ["a1", "a3"]
    assert store.flush([replace(f, expected=t) for f, t in zip(flushes(generation, "", "t2", "b"), found, strict=True)])


def test_a_node_killed_while_flushes_go_to_it_keeps_whole_flushes_only(
    cluster: ClusterSet, store: RedisViewStore, stores: Callable[..., RedisViewStore], generation: Generation
) -> None:
    """Each flush adds a row, writes another one over and moves the checkpoint; the promoted replica has a prefix."""
    victim, writer = cluster.owner(slot_of(generation, 0)), stores(cluster.settings)
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
    owners = owners_of(cluster, generation)
    for bucket, found in sorted(store.checkpoints(generation).items()):
        at = found.position.next_offset("shop.events", 0)
        fields = store.read(generation, [(bucket, "a")]).rows[0]
        assert fields is not None
        assert (found.token, fields[b"color"]) == (f"t{at}", b"%d" % at)
        assert len(rows(store, generation, bucket)) == at + 1
        assert last - 1 <= at <= last or owners[bucket] is replica


def test_a_flush_and_a_seal_that_the_promoted_replica_never_got_are_noticed(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    """The registry, on another node, may say sealed all the same; folding from such a checkpoint counts rows twice."""
    loaded = new_marked(store, BUCKETS, Phase.BULK)
    while cluster.owner(slot_of(loaded, 0)) is not cluster.owner(slot_of(generation, 0)):
        loaded = new_marked(store, BUCKETS, Phase.BULK)
    load(store, loaded)
    assert store.flush(flushes(generation, "", "t1", "a"))
    victim = cluster.owner(slot_of(generation, 0))
    lost, unsealed = (
        {b for b, owner in enumerate(owners_of(cluster, g)) if owner is victim} for g in (generation, loaded)
    )

    def happens() -> None:
        assert store.flush(flushes(generation, "t1", "t2", "b"))
        store.seal(loaded, {b: replace(checkpoint("s", 9), rows=int(b == 0)) for b in range(BUCKETS)})

    cluster.lose(victim, happens)
    assert not store.flush(flushes(generation, "t2", "t3", "c")), "the connection was lost"
    assert not store.flush(flushes(generation, "t3", "t4", "d")), "tokens are older"
    for bucket in range(BUCKETS):
        assert has_rows(store, generation, bucket, "a" if bucket in lost else "abc")
    assert tokens(store, generation) == ["t1" if bucket in lost else "t3" for bucket in range(BUCKETS)]
    assert set(store.checkpoints(loaded.in_phase(Phase.SEALED))) == set(range(BUCKETS)) - unsealed
    assert 0 not in store.read(loaded.in_phase(Phase.SEALED), [(0, "a")]).checkpoints
    twin = store.checkpoints(loaded)[0]
    assert twin.phase is Phase.BULK, "taken for a mark, it says that nothing is folded yet"
    assert twin.position.offsets == checkpoint("", 0).position.offsets


def test_a_dead_node_is_named_the_others_are_read_and_after_a_failover_all_are(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(flushes(generation, "", "t1", "a"))
    victim, *owners = owners_of(cluster, generation)
    replica = cluster.replica_of(victim)
    other = next(bucket for bucket, owner in enumerate(owners, 1) if owner is not victim)
    with asyncio.Runner() as loop:
        before = loop.run(store.aask(Rows(generation, ((0, "a0"),))))
        cluster.wait_replicated(victim)
        victim.kill()
        assert not store.flush(flushes(generation, "t1", "t2", "b")), "what the dead node did is not known"
        assert has_rows(store, generation, other, "ab")
        with pytest.raises(InfrastructureError, match=rf"{victim.port}.*redis-cli --cluster check"):
            store.flush(flushes(generation, "t2", "t3", "c"))
        assert has_rows(store, generation, other, "ab"), "nothing is sent to some only"
        cluster.wait_promoted(replica)

        async def many() -> list[Any]:
            return await asyncio.gather(*(store.aask(Rows(generation, ((0, "a0"),))) for _ in range(20)))

        assert loop.run(many()) == [before] * 20
    assert len(store.checkpoints(generation)) == BUCKETS
    assert store.change_registry(generation.view, Registry(), Registry().with_generation(generation))


def load(store: RedisViewStore, generation: Generation) -> None:
    with RedisBulkSink(store._settings) as sink:
        sink.write(generation, 0, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])


def test_a_reader_is_denied_the_rest_on_every_kind_of_connection(
    cluster: ClusterSet, store: RedisViewStore, stores: Callable[..., RedisViewStore], generation: Generation
) -> None:
    for node in cluster.nodes:
        with node.client() as client:
            rules = redis_rules(["client"], [generation.view]).split()
            client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">s3cret", *rules)
    reader, hidden = stores(as_user(cluster.settings, "reader", "s3cret")), replace(generation, view="another")
    assert reader.checkpoints(generation).keys() == set(range(BUCKETS))
    assert (
        len(asyncio.run(reader.aask(Rows(generation, tuple((b, "b") for b in range(BUCKETS))))).checkpoints) == BUCKETS
    )
    for denied, what in (
        (lambda: reader.flush([flush_of(generation, 0, "t", "t2")]), "UNWATCH"),
        (lambda: load(reader, generation), "UNWATCH"),
        (lambda: reader.unlink(generation), "UNLINK v:"),
        (lambda: reader.registry("another"), "HGETALL view:another"),
        (lambda: reader.checkpoints(hidden), "[A-Z]+ (v:{|view:)another"),
        (lambda: asyncio.run(reader.aask(Rows(hidden, ((0, "a"),)))), "[A-Z]+ (v:{|view:)another"),
    ):
        with pytest.raises(ConfigurationError, match=f"denies user 'reader' a right: {what}"):
            denied()


def test_status_and_doctor_name_a_cluster_and_a_part_that_is_missing(cluster: ClusterSet, tmp_path: Path) -> None:
    shell, url = Shell(tmp_path), cluster.settings.url

    def doctor() -> dict[str, Any]:
        return {row["about"]: row for row in shell.here("doctor", "--redis", url, "--json").rows()}["redis"]

    (row,) = (row for row in shell.here("status", "--redis", url, "--json").rows() if row.get("name") == "redis")
    assert (row["topology"], row["address"]) == ("cluster", url)
    assert refuse_eviction(cluster.settings) == "noeviction"
    found = doctor()
    assert found["well"], found
    assert "(cluster): 3 masters: answered in" in found["message"]
    with cluster.without(7):
        found = doctor()
    assert not found["well"]
    assert "1 of its 16384 slots have no owner" in found["message"]
    assert "redis-cli --cluster check 127.0.0.1" in found["message"]
