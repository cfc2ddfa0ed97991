"""Slots that move under flushes and reads: a bucket is written whole or not at all, and read as it is."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from redis.crc import key_slot

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.ports.flush import Generation, Registry
from leftfold.ports.queries import Registered, Rows
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import RawConnection
from leftfold.redis.flusher import commands_of
from leftfold.redis.keys import BucketKeys, registry_key
from leftfold.testing.contracts.readers import changed, flush_of, keys_with, row
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import BUCKETS, Line, flushes, rows, slot_of, tokens

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("warm", [True, False])
def test_a_bucket_whose_slot_has_moved_is_found_where_it_is(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation, warm: bool
) -> None:
    assert store.flush(flushes(generation, "", "t1", "a"))
    if not warm:  # it has no open connections, but knows where each slot was
        store._flushers.close()
        for client in store._client._pools.values():
            client.close()
    with cluster.moving(slot_of(generation, 0)):
        pass
    assert not store.flush(flushes(generation, "t1", "t2", "b"))
    found = tokens(store, generation)
    assert found == (["t1"] + ["t2"] * (BUCKETS - 1) if warm else ["t1"] * BUCKETS)
    assert rows(store, generation, 0) == ["a0"]
    assert store.flush([replace(f, expected=t) for f, t in zip(flushes(generation, "", "t3", "c"), found, strict=True)])
    assert rows(store, generation, 0) == ["a0", "c0"]


def test_while_a_slot_moves_its_bucket_is_written_whole_or_not_at_all(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    keys = BucketKeys(generation, 0)
    assert store.flush([flush_of(generation, 0, "", "t1", row("a"), row("b"), row("c"))])

    def reported() -> tuple[str, list[str], list[bytes]]:
        snapshot = store.read(generation, [(0, key) for key in "abcd"])
        assert snapshot == asyncio.run(store.aask(Rows(generation, tuple((0, key) for key in "abcd"))))
        colors = [fields[b"color"] if fields else b"" for fields in snapshot.rows]
        return snapshot.checkpoints[0].token, rows(store, generation, 0), colors

    with cluster.moving(slot_of(generation, 0)) as move:
        assert reported() == ("t1", ["a", "b", "c"], [b"red", b"red", b"red", b""])
        assert not store.flush([flush_of(generation, 0, "t1", "t2", row("d"))]), "the target would have to make it"
        assert store.flush([flush_of(generation, 0, "t1", "t2", changed("a", b"red", b"red"))]), "all of it is here"
        move.carry(keys.row("b"))
        assert reported() == ("t2", ["a", "b", "c"], [b"red", b"red", b"red", b""])
        blue = [changed(key, b"red", b"red")._replace(fields=(b"blue", b"S")) for key in ("a", "b")]
        assert not store.flush([flush_of(generation, 0, "t2", "t3", *blue)]), "half of it is there"
        assert reported() == ("t2", ["a", "b", "c"], [b"red", b"red", b"red", b""])
        move.carry(keys.checkpoint)
        assert not store.flush([flush_of(generation, 0, "t2", "t3", *blue)])
        assert reported() == ("t2", ["a", "b", "c"], [b"red", b"red", b"red", b""])
        assert keys_with(store, generation, 0, "color", "=red") == ["a", "b", "c"]
    assert reported() == ("t2", ["a", "b", "c"], [b"red", b"red", b"red", b""])
    moved = [flush_of(generation, 0, "t2", "t3", *blue)]
    assert store.flush(moved) or store.flush(moved), "the first attempt may learn only where the bucket is"
    assert reported() == ("t3", ["a", "b", "c"], [b"blue", b"blue", b"red", b""])


def test_twin_without_multi_a_moving_slot_leaves_half_a_bucket(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    keys = BucketKeys(generation, 0)
    assert store.flush([flush_of(generation, 0, "", "t1", row("a"), row("b"))])
    blue = [changed(key, b"red", b"red")._replace(fields=(b"blue", b"S")) for key in ("a", "b")]
    with cluster.moving(slot_of(generation, 0)) as move:
        move.carry(keys.row("b"))
        wire = RawConnection(cluster.settings.at(("127.0.0.1", move.source.port)))
        wire.exchange(list(commands_of(flush_of(generation, 0, "t1", "t2", *blue), 9)))
        wire.close()
    snapshot = store.read(generation, [(0, "a"), (0, "b")])
    assert snapshot.checkpoints[0].token == "t2"
    assert [fields[b"color"] for fields in snapshot.rows if fields] == [b"blue", b"red"]


def test_a_slot_that_moves_inside_a_transaction_takes_all_of_it_away(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    """The source has queued every command when the slot leaves it; its EXEC says MOVED."""
    line = Line()
    late = RedisViewStore(cluster.settings, line.connect)
    assert late.flush([flush_of(generation, 0, "", "t1", row("a"))])

    def move() -> None:
        with cluster.moving(slot_of(generation, 0)):
            pass

    line.between = move
    assert not late.flush([flush_of(generation, 0, "t1", "t2", row("b"), changed("a", b"red", b"red"))])
    assert line.between is None
    assert (tokens(store, generation)[0], rows(store, generation, 0)) == ("t1", ["a"])
    assert late.flush([flush_of(generation, 0, "t1", "t2", row("b"))])
    late.close()


def test_the_registry_waits_until_its_slot_has_moved(
    cluster: ClusterSet, stores: Callable[..., RedisViewStore], generation: Generation
) -> None:
    store = stores(cluster.patient_settings)
    one = Registry().with_generation(generation)
    slot = int(key_slot(registry_key(generation.view)))
    with ThreadPoolExecutor(1) as pool:
        with cluster.moving(slot):
            waiting = pool.submit(store.change_registry, generation.view, Registry(), one)
            assert store.registry(generation.view) == Registry()
            assert asyncio.run(store.aask(Rows(generation, ()))).live == ""
            assert not waiting.done()
        assert waiting.result(240.0)
    with cluster.moving(slot) as move:
        move.carry(registry_key(generation.view))
        assert store.registry(generation.view) == one
        assert store.read(generation, [(0, "a")]).live == ""
    assert store.change_registry(generation.view, one, one.pointed(generation))


def test_a_slot_that_moves_for_too_long_is_an_error(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    impatient = RedisViewStore(cluster.settings.model_copy(update={"timeout": 3.0}))
    slot = int(key_slot(registry_key(generation.view)))
    with cluster.moving(slot), pytest.raises(InfrastructureError, match=rf"slot {slot} has been on the move for 3 s"):
        impatient.change_registry(generation.view, Registry(), Registry().with_generation(generation))
    assert store.change_registry(generation.view, Registry(), Registry().with_generation(generation))
    impatient.close()


def test_the_url_of_one_server_that_is_a_node_of_a_cluster_is_refused_at_once(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    views = (f"view{number}" for number in itertools.count())
    away = next(view for view in views if cluster.owner(registry_key(view)).port != cluster.nodes[0].port)
    node = RedisViewStore(cluster.settings.at(("127.0.0.1", cluster.nodes[0].port)))
    with closing(node), pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        node.registry(away)
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        asyncio.run(node.aask(Registered(away)))


def test_an_error_of_coroutines_names_the_node_that_is_lost(
    cluster: ClusterSet, store: RedisViewStore, generation: Generation
) -> None:
    lost = cluster.owner(slot_of(generation, 0))

    async def ask() -> None:
        assert (await store.aask(Rows(generation, ((0, "a"),)))).rows == (None,)
        lost.kill()
        with pytest.raises(InfrastructureError, match=rf"127\.0\.0\.1:{lost.port}: "):
            await store.aask(Rows(generation, ((0, "a"),)))

    asyncio.run(ask())
