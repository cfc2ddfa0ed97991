"""A flush lands only where its writer left off; each test has a twin that shows what happens without the mechanism."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leftfold.errors import ContractError, InfrastructureError
from leftfold.ports.flush import BucketFlush, Generation
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import RawConnection
from leftfold.redis.flusher import Flusher, commands_of
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.server import RedisServer
from tests.redis.sockets import Line
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


class Unfenced(Flusher):
    """Trusts WATCH alone."""

    def has_expected_tokens(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Does not compare tokens."""
        return True


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    """An empty generation of two buckets."""
    generation = new_generation(buckets=2)
    assert store.create_marks(generation, {0: checkpoint("", 0), 1: checkpoint("", 0)})
    return generation


def both(generation: Generation, expected: str, token: str, name: str) -> list[BucketFlush]:
    """A flush of both buckets with one row each."""
    return [flush_of(generation, bucket, expected, token, row(f"{name}{bucket}")) for bucket in (0, 1)]


def listed(store: RedisViewStore, generation: Generation) -> list[str]:
    """The rows of both buckets."""
    return store.keys(generation, 0, "", 99) + store.keys(generation, 1, "", 99)


def test_a_writer_that_was_overtaken_writes_nothing(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    late = Flusher(server.settings)
    assert late.flush(both(generation, "", "t1", "a"))
    assert store.flush(both(generation, "t1", "t2", "b"))
    assert not late.flush(both(generation, "t1", "t3", "late"))
    assert not late.flush(both(generation, "t1", "t3", "late"))
    assert listed(store, generation) == ["a0", "b0", "a1", "b1"]
    late.close()


def test_a_zombie_that_connects_again_writes_nothing(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(both(generation, "", "t1", "a"))
    assert store.flush(both(generation, "t1", "t2", "b"))
    zombie = Flusher(server.settings)
    assert not zombie.flush(both(generation, "t1", "t3", "late"))
    assert listed(store, generation) == ["a0", "b0", "a1", "b1"]
    zombie.close()


def test_twin_with_watch_alone_the_zombie_lands(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(both(generation, "", "t1", "a"))
    assert store.flush(both(generation, "t1", "t2", "b"))
    zombie = Unfenced(server.settings)
    assert zombie.flush(both(generation, "t1", "t3", "late"))
    assert "late0" in listed(store, generation)
    zombie.close()


def test_a_writer_between_token_read_and_exec_wins(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation(buckets=2)
    assert store.create_marks(generation, {0: checkpoint("", 0), 1: checkpoint("", 0)})

    class Overtaken(Flusher):
        def has_expected_tokens(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
            mine = super().has_expected_tokens(flushes, tokens)
            assert store.flush([flush_of(generation, 1, "", "other")])
            return mine

    late = Overtaken(server.settings)
    assert not late.flush(both(generation, "", "t1", "late"))
    assert listed(store, generation) == []
    late.close()


def test_a_steady_flush_is_one_write(server: RedisServer, store: RedisViewStore, generation: Generation) -> None:
    line = Line()
    flusher = Flusher(server.settings, line.connect)
    writes = []
    for number in range(6):
        before = "" if number == 0 else f"t{number - 1}"
        assert flusher.flush(both(generation, before, f"t{number}", f"r{number}-"))
        writes.append(line.writes)
    assert [after - before for before, after in zip([0, *writes], writes, strict=False)] == [2, 1, 1, 1, 1, 1]
    flusher.close()


def test_another_set_of_buckets_costs_one_write_more(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    line = Line()
    flusher = Flusher(server.settings, line.connect)
    assert flusher.flush(both(generation, "", "t1", "a"))
    assert store.flush(both(generation, "t1", "other", "c")[1:])
    assert flusher.flush(both(generation, "t1", "t2", "b")[:1]), "a bucket it no longer flushes must not stop it"
    assert line.writes == 4
    assert flusher.flush(both(generation, "t2", "t3", "d")[:1])
    assert line.writes == 5
    flusher.close()


def test_a_connection_lost_in_the_middle_of_a_flush_leaves_nothing(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    line = Line()
    flusher = Flusher(server.settings, line.connect)
    assert flusher.flush(both(generation, "", "t1", "a"))
    line.let_through = 0.6
    assert not flusher.flush(both(generation, "t1", "t2", "b"))
    assert line.sent_until_broken > 300
    wait_until(lambda: len(connections(server)) <= 2, "the server to see the broken connection")
    assert listed(store, generation) == ["a0", "a1"]
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert flusher.flush(both(generation, "t1", "t2", "b"))
    flusher.close()


def test_twin_without_multi_half_of_the_flush_stays(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    line = Line()
    wire = RawConnection(server.settings, line.connect)
    commands = [command for flush in both(generation, "", "t1", "a") for command in commands_of(flush, 1000)]
    line.let_through = 0.6
    wire.send(commands)
    wire.close()
    wait_until(lambda: store.checkpoints(generation)[0].token == "t1", "half of the flush")
    assert store.checkpoints(generation)[1].token == ""
    assert listed(store, generation) == ["a0"]


def test_a_lost_answer_is_no_answer_and_the_marks_tell(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    line = Line()
    flusher = Flusher(server.settings, line.connect)
    assert flusher.flush(both(generation, "", "t1", "a"))
    line.let_through = 1
    assert not flusher.flush(both(generation, "t1", "t2", "b"))
    wait_until(lambda: store.checkpoints(generation)[0].token == "t2", "the flush whose answer was lost")
    assert flusher.flush(both(generation, "t2", "t3", "c"))
    assert listed(store, generation) == ["a0", "b0", "c0", "a1", "b1", "c1"]
    flusher.close()


def test_a_server_that_went_back_in_time_is_noticed(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(both(generation, "", "t1", "a"))
    go_back_behind(server, store, both(generation, "t1", "t2", "b"))
    assert not store.flush(both(generation, "t2", "t3", "c")), "the connection was lost"
    assert not store.flush(both(generation, "t2", "t3", "c")), "the tokens are older"
    assert store.checkpoints(generation) == {0: checkpoint("t1", 1), 1: checkpoint("t1", 1)}
    assert store.flush(both(generation, "t1", "t4", "b"))
    assert listed(store, generation) == ["a0", "b0", "a1", "b1"]


def test_twin_without_tokens_the_lost_rows_are_never_missed(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush(both(generation, "", "t1", "a"))
    go_back_behind(server, store, both(generation, "t1", "t2", "b"))
    blind = Unfenced(server.settings)
    assert blind.flush(both(generation, "t2", "t3", "c"))
    assert listed(store, generation) == ["a0", "c0", "a1", "c1"]
    blind.close()


def test_a_lost_mark_stops_the_flush(server: RedisServer, store: RedisViewStore, generation: Generation) -> None:
    assert store.flush(both(generation, "", "t1", "a"))
    with server.client() as client:
        client.delete(BucketKeys(generation, 1).checkpoint)
    assert not store.flush(both(generation, "t1", "t2", "b"))
    assert not store.flush(both(generation, "t1", "t2", "b"))
    assert listed(store, generation) == ["a0", "a1"]


def test_a_flush_larger_than_every_buffer_gets_through(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation(buckets=1)
    assert store.create_marks(generation, {0: checkpoint("", 0)})
    changes = [row(f"r{n}")._replace(fields=(b"x" * 400, b"S")) for n in range(60_000)]
    line = Line()
    flusher = Flusher(server.settings, line.connect)
    assert flusher.flush([flush_of(generation, 0, "", "t1", *changes)])
    assert line.writes > 50
    assert len(store.keys(generation, 0, "", 99_999)) == 60_000
    store.unlink(generation)
    flusher.close()


def test_a_server_that_refuses_to_write_is_an_error_and_nothing_is_written(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(InfrastructureError, match="refused: OOM"):
                store.flush(both(generation, "", "t1", "a"))
        finally:
            client.config_set("maxmemory", 0)
    assert listed(store, generation) == []
    assert store.flush(both(generation, "", "t1", "a"))


def test_a_key_of_another_kind_is_told(server: RedisServer, store: RedisViewStore, generation: Generation) -> None:
    with server.client() as client:
        client.set(BucketKeys(generation, 0).row("a0"), b"not a hash")
    with pytest.raises(ContractError, match="rebuild the view"):
        store.flush(both(generation, "", "t1", "a"))


def test_a_flush_to_a_dead_server_says_how_to_start_it(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation(buckets=2)
    assert store.create_marks(generation, {0: checkpoint("", 0), 1: checkpoint("", 0)})
    assert store.flush(both(generation, "", "t1", "a"))
    server.kill()
    try:
        assert not store.flush(both(generation, "t1", "t2", "b"))
        with pytest.raises(InfrastructureError, match=rf"127\.0\.0\.1:{server.port} is not reachable.*leftfold up"):
            store.flush(both(generation, "t1", "t2", "b"))
        with pytest.raises(InfrastructureError, match="leftfold up"):
            store.checkpoints(generation)
    finally:
        server.start()
    assert store.flush(both(generation, "t1", "t2", "b"))


def go_back_behind(server: RedisServer, store: RedisViewStore, flushes: list[BucketFlush]) -> None:
    """Flushes, and then gives the server the disk from before."""
    saved = server.saved()
    assert store.flush(flushes)
    server.kill()
    server.restore(saved)
    server.start()


def connections(server: RedisServer) -> list[object]:
    """Who is connected."""
    with server.client() as client:
        found: list[object] = client.client_list()
        return found
