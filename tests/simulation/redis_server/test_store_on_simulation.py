"""The shipped adapter of Redis on the simulated one: its contract, rivals for a bucket, and time that is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import cast

import pytest
from redis.crc import key_slot

from leftfold.errors import ConfigurationError
from leftfold.ports.flush import BucketFlush, Generation, Registry
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Registered
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import UNWATCH
from leftfold.redis.flusher import Flusher
from leftfold.testing.contracts import ViewStoreContract
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from leftfold.testing.simulation.redis_server.resp import OK, CommandReader, ErrorReply, Reply, encode
from leftfold.testing.simulation.stand_ins.event_loop import asyncio
from tests.simulation.redis_server.redis_world import RedisWorld, StoreInWorld, redis_world

_SEEDS = 25


class TestRedisViewStore(ViewStoreContract):
    """The contract in virtual time."""

    @pytest.fixture
    def store(self, request: pytest.FixtureRequest) -> Iterator[ViewStore]:
        """A store in a world of its own."""
        with redis_world(seed=sum(request.node.name.encode())) as world:
            store = StoreInWorld(world)
            yield cast(ViewStore, store)
            store.close()
            world.pass_time(1.0)
            assert not world.redis.sessions


def _in_process(test: Callable[..., None]) -> Callable[..., None]:
    @wraps(test)
    def run(self: object, store: StoreInWorld, **fixtures: object) -> None:
        store.world.do(lambda: test(self, store=store, **fixtures))

    return run


for _name in dir(ViewStoreContract):
    if _name.startswith("test_"):
        setattr(TestRedisViewStore, _name, _in_process(getattr(ViewStoreContract, _name)))


class Unfenced(Flusher):
    """Trusts WATCH alone."""

    def has_expected_tokens(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Does not compare tokens."""
        return True


class Unwatched(Flusher):
    """Trusts the comparison of tokens alone."""

    def transaction(self, commands: list[bytes]) -> list[bytes]:
        """Gives the WATCH up."""
        return [UNWATCH, *super().transaction(commands)]


class _HalfMoved:
    """A node of a cluster whose slots all move from node 0 to node 1, where every key is, which is empty."""

    def __init__(self, number: int, *, denies: bool) -> None:
        self._number, self._denies = number, denies
        self._reader, self._is_asked, self.is_closed = CommandReader(), False, False

    def open(self, deliver: Callable[[bytes | None], None]) -> _HalfMoved:
        """A connection to the node."""
        return _HalfMoved(self._number, denies=self._denies)

    def close(self) -> None:
        """Ends the connection."""
        self.is_closed = True

    def receive(self, data: bytes) -> bytes:
        """The replies to some commands."""
        return b"".join(encode(self._reply(parts)) for parts in self._reader.feed(data))

    def _reply(self, parts: list[bytes]) -> Reply:
        is_asked, self._is_asked = self._is_asked, parts[0] == b"ASKING" and not self._denies
        match parts[0]:
            case b"CLUSTER":
                return [[0, 16_383, [b"node0", 7000, b"id"]]]
            case b"ASKING" if self._denies:
                return ErrorReply("NOPERM this user has no permissions to run the 'asking' command")
            case b"HGETALL" if not is_asked:
                slot, moves = key_slot(parts[1]), ("MOVED {} node0:7000", "ASK {} node1:7000")
                return ErrorReply(moves[self._number == 0].format(slot))
            case b"HGETALL":
                return []
        return OK


@pytest.mark.parametrize("denies", [False, True])
def test_a_user_who_may_not_ask_for_a_key_of_a_moving_slot_is_denied_at_once(denies: bool) -> None:
    with redis_world(seed=1) as world:
        for number in range(2):
            world.network.listen((f"node{number}", 7000), _HalfMoved(number, denies=denies))
        settings = RedisSettings(url="redis+cluster://node0:7000", timeout=2.0)

        async def aask() -> Registry:
            store = RedisViewStore(settings)
            try:
                return await store.aask(Registered("things"))
            finally:
                await store.aclose()

        for read in (lambda: RedisViewStore(settings).registry("things"), lambda: asyncio.run(aask())):
            began = world.world.scheduler.now
            if denies:
                with pytest.raises(ConfigurationError, match=r"a right: HGETALL view:things .*'asking'"):
                    world.do(read)
            else:
                assert world.do(read) == Registry()
            assert world.world.scheduler.now - began < settings.timeout


def _started(world: RedisWorld) -> Generation:
    generation = new_generation(buckets=1)
    assert world.do(lambda: world.store().create_marks(generation, {0: checkpoint("", 0)}))
    return generation


def _race(world: RedisWorld, made: type[Flusher]) -> tuple[dict[str, bool], list[tuple[str, str]], list[str]]:
    """Two processes flush one bucket at once: who says it has, what was sent, and the rows that are there."""
    generation, sent = _started(world), list[tuple[str, str]]()
    world.network.fate = lambda what, process: sent.append((process.name, what))

    def flush(name: str) -> bool:
        flusher = made(RedisSettings(url="redis://redis:6379/0"))
        return flusher.begin([flush_of(generation, 0, "", name, row(name))]).landed()

    won = world.together({"a": lambda: flush("a"), "b": lambda: flush("b")})
    return won, sent, world.do(lambda: world.store().keys(generation, 0, "", 9), "reader")


def test_of_two_processes_that_flush_a_bucket_one_loses() -> None:
    by_watch = by_token = 0
    for seed in range(_SEEDS):
        with redis_world(seed) as world:
            won, sent, keys = _race(world, Flusher)
        (winner,) = [name for name in won if won[name]]
        (loser,) = [name for name in won if not won[name]]
        assert keys == [winner]
        by_watch += (loser, "redis MULTI") in sent
        by_token += (loser, "redis MULTI") not in sent
    assert by_watch, "no schedule had both processes see the same token"
    assert by_token, "no schedule had one process flush before the other looked"


def test_twin_without_watch_both_processes_say_that_they_have_flushed() -> None:
    winners = set[int]()
    for seed in range(_SEEDS):
        with redis_world(seed) as world:
            winners.add(sum(_race(world, Unwatched)[0].values()))
    assert winners == {1, 2}


@pytest.mark.parametrize("how", ["lost seconds", "saved"])
def test_a_flusher_notices_that_redis_went_back_in_time(how: str) -> None:
    with redis_world(seed=3) as world:
        generation = _started(world)
        store = StoreInWorld(world)
        assert store.flush([flush_of(generation, 0, "", "t1", row("a"), at=1)])
        world.pass_time(5.0)
        saved = world.redis.saved()
        assert store.flush([flush_of(generation, 0, "t1", "t2", row("b"), at=2)])
        world.pass_time(1.0)
        world.redis.restart(**({"lost_seconds": 3.0} if how == "lost seconds" else {"saved": saved}))
        for _ in range(3):
            assert not store.flush([flush_of(generation, 0, "t2", "t3", row("c"), at=3)])
        assert store.checkpoints(generation) == {0: checkpoint("t1", 1)}
        assert store.keys(generation, 0, "", 9) == ["a"]
        assert store.flush([flush_of(generation, 0, "t1", "t2'", row("b"), at=2)])
        assert store.flush([flush_of(generation, 0, "t2'", "t3'", row("c"), at=3)])
        assert store.keys(generation, 0, "", 9) == ["a", "b", "c"]


def test_twin_without_tokens_a_flush_lands_behind_what_was_lost() -> None:
    with redis_world(seed=3) as world:
        generation = _started(world)
        flusher = Unfenced(RedisSettings(url="redis://redis:6379/0"))
        assert world.do(lambda: flusher.begin([flush_of(generation, 0, "", "t1", row("a"))]).landed(), "projector")
        saved = world.redis.saved()
        assert world.do(lambda: flusher.begin([flush_of(generation, 0, "t1", "t2", row("b"))]).landed(), "projector")
        world.redis.restart(saved=saved)
        flush = [flush_of(generation, 0, "t2", "t3", row("c"))]
        assert not world.do(lambda: flusher.begin(flush).landed(), "projector"), (
            "the connection is lost, and nothing else is known"
        )
        assert world.do(lambda: flusher.begin(flush).landed(), "projector")
        assert StoreInWorld(world).keys(generation, 0, "", 9) == ["a", "c"]
