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


def tail_on(world: World, store: RedisViewStore) -> Tail:
    return Tail(app.views, world.log.reader, store, look=0.0)


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
