"""A tail on a real Redis ends with the rows of the log, whatever happened to the server or to other tails meanwhile.

The twins, which show what goes wrong without tokens, are in test_flush_fencing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.tail import Tail
from leftfold.errors import InfrastructureError
from leftfold.memory import World
from leftfold.reading import Views
from leftfold.redis import RedisViewStore
from leftfold.testing import fold
from leftfold.view import View
from tests.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.redis.server import RedisServer, wait_until

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log of its own and an empty Redis; the world's own views are the oracle."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        yield world


def happen(world: World, seed: int, count: int = 150) -> None:
    world.client.send_many(list(histories(stranger(seed), count)))


def tail_on(world: World, store: RedisViewStore, **options: Any) -> Tail:
    return Tail(app.views, world.log.reader, store, look=0.0, **{"member": "tail", **options})


def settle(tail: Tail) -> None:
    def quiet() -> bool:
        try:
            return tail.step(0.0) == 0 and tail.caught_up()
        except InfrastructureError:
            return False

    wait_until(quiet, "the tail to catch up")


def assert_equal_to_the_log(world: World, store: RedisViewStore) -> None:
    views, events = Views(store), [recorded.event for recorded in world.events("ledgers")]
    for view in VIEWS:
        assert dict(views[view].items()) == fold(view, *events)
        assert views[view].describe().checksum == world.views[view].describe().checksum


def test_a_tail_follows_the_log(server: RedisServer, store: RedisViewStore, world: World) -> None:
    tail = tail_on(world, store)
    for seed in range(3):
        happen(world, seed)
        settle(tail)
        assert_equal_to_the_log(world, store)
    tail.close()


def test_a_redis_that_went_back_in_time_heals(server: RedisServer, store: RedisViewStore, world: World) -> None:
    tail = tail_on(world, store)
    happen(world, 1)
    settle(tail)
    saved = server.saved()
    happen(world, 2)
    settle(tail)
    server.kill()
    server.restore(saved)
    server.start()
    happen(world, 3, count=2)
    settle(tail)
    assert_equal_to_the_log(world, store)
    tail.close()


def test_a_flushed_redis_is_filled_again(server: RedisServer, store: RedisViewStore, world: World) -> None:
    tail = tail_on(world, store)
    happen(world, 1)
    settle(tail)
    with server.client() as client:
        client.flushall()
    happen(world, 2)
    settle(tail)
    assert_equal_to_the_log(world, store)
    tail.close()


def test_two_tails_of_one_view_do_no_harm(server: RedisServer, store: RedisViewStore, world: World) -> None:
    other_store = RedisViewStore(server.settings)
    one, other = tail_on(world, store), tail_on(world, other_store)
    for seed in range(4):
        happen(world, seed)
        for _ in range(20):
            one.step(0.0)
            other.step(0.0)
    other.close()
    other_store.close()
    happen(world, 9)
    settle(one)
    assert_equal_to_the_log(world, store)
    one.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_tails_that_come_go_and_die_leaves_the_rows_of_the_log(
    server: RedisServer, store: RedisViewStore, world: World, seed: int
) -> None:
    chance, at_work, number = stranger(seed), list[tuple[Tail, RedisViewStore]](), 0
    for _ in range(120):
        match chance.choice(["start", "end", "die", "work", "work", "work", "write"]):
            case "start" if len(at_work) < 5:
                number += 1
                own = RedisViewStore(server.settings)
                at_work.append((tail_on(world, own, member=f"tail {number}", lease=0.05, batch=7), own))
            case "end" if at_work:
                tail, own = at_work.pop(chance.randrange(len(at_work)))
                tail.close()
                own.close()
            case "die" if at_work:
                _, own = at_work.pop(chance.randrange(len(at_work)))
                own.close()
            case "write":
                happen(world, chance.randrange(99), count=10)
            case _:
                for tail, _ in at_work:
                    tail.step(0.0)
    last = tail_on(world, store, member="last", lease=60.0)
    wait_until(lambda: quiet(last) and whole(last, store), "the last tail to hold every bucket and to catch up")
    assert_equal_to_the_log(world, store)
    last.close()
    for tail, own in at_work:
        tail.close()
        own.close()


def quiet(tail: Tail) -> bool:
    return tail.step(0.0) == 0 and tail.caught_up()


def whole(tail: Tail, store: RedisViewStore) -> bool:
    """Whether a tail folds every bucket of every live generation."""
    live = [store.registry(view.name).live_of(view.hash) for view in VIEWS]
    held = [
        follower.generation.id for follower in tail.followers() if len(follower.buckets) == follower.generation.buckets
    ]
    return all(generation is not None and generation.id in held for generation in live)
