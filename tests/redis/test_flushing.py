"""A flush lands only where its writer left off; each test has a twin that shows what happens without the mechanism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from leftfold.errors import ContractError, InfrastructureError
from leftfold.ports.flush import Generation
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import RawConnection
from leftfold.redis.flusher import Flusher, Flushers, commands_of
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import Line, flushes, new_marked, rows
from tests.redis.server import RedisServer, connections, counted
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    return new_marked(store, 2)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def flusher(server: RedisServer, line: Line) -> Iterator[Flusher]:
    """A flusher beside the store's own."""
    flusher = Flusher(server.settings, line.connect)
    yield flusher
    flusher.close()


def test_a_steady_flush_is_one_write_and_another_set_of_buckets_costs_one_more(
    store: RedisViewStore, generation: Generation, flusher: Flusher, line: Line
) -> None:
    writes = []
    for number in range(4):
        before = f"t{number - 1}" if number else ""
        assert flusher.begin(flushes(generation, before, f"t{number}", f"r{number}-")).landed()
        writes.append(line.writes)
    assert writes == [2, 3, 4, 5]
    assert store.flush(flushes(generation, "t3", "other", "c")[1:])
    assert flusher.begin(flushes(generation, "t3", "t4", "b")[:1]).landed(), "a bucket that it flushed before stops it"
    assert line.writes == 7
    assert flusher.begin(flushes(generation, "t4", "t5", "d")[:1]).landed()
    assert line.writes == 8


def test_a_steady_flush_costs_one_notice_and_one_addition_per_changed_bucket(
    server: RedisServer, store: RedisViewStore
) -> None:
    generation = new_marked(store, 8)
    for number, changed in enumerate((8, 0, 1, 5, 8)):
        before, changes = f"t{number - 1}" if number else "", [row(f"r{number}")]
        with counted(server) as counts:
            assert store.flush(
                [flush_of(generation, b, before, f"t{number}", *changes[: b < changed], at=number) for b in range(8)]
            )
        assert (counts.get("xadd", 0), counts["publish"]) == (changed, 1)
        assert (counts["multi"], counts["exec"], counts["hset"]) == (1, 1, 8 + changed)
        others = counts.keys() - {
            "xadd",
            "publish",
            "multi",
            "exec",
            "hset",
            "zadd",
            "watch",
            "unwatch",
            "hget",
            "info",
        }
        assert not [name for name in others if counts[name] and not name.startswith(("client", "hello", "config"))]


def test_a_connection_lost_in_the_middle_of_a_flush_leaves_nothing(
    server: RedisServer, store: RedisViewStore, generation: Generation, flusher: Flusher, line: Line
) -> None:
    assert flusher.begin(flushes(generation, "", "t1", "a")).landed()
    line.let_through = 0.6
    assert not flusher.begin(flushes(generation, "t1", "t2", "b")).landed()
    assert line.sent_until_broken > 300
    wait_until(lambda: connections(server) <= 2, "the server to see the broken connection")
    assert rows(store, generation) == ["a0", "a1"]
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert flusher.begin(flushes(generation, "t1", "t2", "b")).landed()


def test_twin_without_multi_half_of_the_flush_stays(
    server: RedisServer, store: RedisViewStore, generation: Generation, line: Line
) -> None:
    wire = RawConnection(server.settings, line.connect)
    line.let_through = 0.6
    wire.send([command for flush in flushes(generation, "", "t1", "a") for command in commands_of(flush, 1000)])
    wire.close()
    wait_until(lambda: store.checkpoints(generation)[0].token == "t1", "half of the flush")
    assert store.checkpoints(generation)[1].token == ""
    assert rows(store, generation) == ["a0"]


def test_a_flush_larger_than_every_buffer_gets_through(
    store: RedisViewStore, generation: Generation, flusher: Flusher, line: Line
) -> None:
    changes = [row(f"r{n}")._replace(fields=(b"x" * 12_000, b"S")) for n in range(2000)]
    assert flusher.begin([flush_of(generation, 0, "", "t1", *changes)]).landed()
    assert line.writes > 50
    assert len(rows(store, generation, 0)) == 2000
    store.unlink(generation)


def test_a_server_that_refuses_to_write_is_an_error_and_nothing_is_written(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(InfrastructureError, match="refused: OOM"):
                store.flush(flushes(generation, "", "t1", "a"))
        finally:
            client.config_set("maxmemory", 0)
        assert rows(store, generation) == []
        client.set(BucketKeys(generation, 0).row("a0"), b"not a hash")
    with pytest.raises(ContractError, match="rebuild the view"):
        store.flush(flushes(generation, "", "t1", "a"))


def test_each_of_many_generations_keeps_its_connection_while_they_are_flushed(
    server: RedisServer, store: RedisViewStore, line: Line
) -> None:
    generations = [new_marked(store, 1) for _ in range(80)]
    with closing(Flushers(server.settings, line.connect)) as flushers:
        begun = [flushers.of(generation).begin(flushes(generation, "", "t1", "a")) for generation in generations]
        assert all(flush.landed() for flush in begun), "a pending flush lost its connection"
        for generation in generations:
            assert flushers.of(generation).begin(flushes(generation, "t1", "t2", "b")).landed()
    assert line.writes == (2 + 1) * len(generations), "one that was connected watched its checkpoints again"


def test_a_flusher_without_use_is_closed_when_there_are_many_unless_its_flush_is_pending(
    either: RedisServer | ClusterSet, stores: Callable[[RedisSettings], RedisViewStore]
) -> None:
    now, pending = [0.0], new_marked(stores(either.settings), 1)
    idle, last, *others = [new_generation(1) for _ in range(80)]
    with closing(Flushers(either.settings, clock=lambda: now[0])) as flushers:
        flush, closed = flushers.of(pending).begin(flushes(pending, "", "t1", "a")), flushers.of(idle)
        for generation in others:
            flushers.of(generation)
        now[0] += 61.0
        flushers.of(last)
        assert flush.landed()
        assert flushers.of(idle) is not closed
