"""A projector on a real Redis ends with the rows of the log, whatever happened to the server or to other projectors
meanwhile.

Each twin has a store that does not compare tokens, and nobody who looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.memory import World
from leftfold.model.keys import events as events_topic
from leftfold.model.view import View
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import SortedSets, dial
from leftfold.redis.flusher import Flushers
from leftfold.testing import fold
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.redis.server import RedisServer
from tests.redis.twins import Blind
from tests.waiting import wait_until
from tests.whole import assert_whole

pytestmark = pytest.mark.servers

TOPIC = events_topic("ledgers")
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


def tail_on(world: World, store: RedisViewStore, **options: Any) -> Projector:
    return Projector(app.views, world.log.reader, store, **{"look": 0.0, "member": "tail", **options})


def settle(tail: Projector) -> None:
    def quiet() -> bool:
        try:
            return tail.step(0.0) == 0 and tail.caught_up()
        except InfrastructureError:
            return False

    wait_until(quiet, "the tail to catch up")


def assert_equal_to_the_log(world: World, store: RedisViewStore, *views: View[Any, Any]) -> None:
    events, ends = [recorded.event for recorded in world.events("ledgers")], world.log.reader().ends([TOPIC])
    for view in views or VIEWS:
        assert_whole(store, view, dict(fold(view, *events)), ends)


def test_a_tail_follows_the_log(server: RedisServer, store: RedisViewStore, world: World) -> None:
    tail = tail_on(world, store)
    for seed in range(3):
        happen(world, seed)
        settle(tail)
        assert_equal_to_the_log(world, store)
    tail.close()


def set_back(server: RedisServer, store: RedisViewStore, world: World) -> None:
    """A projector under which Redis goes back in time."""
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
    tail.close()


def test_a_redis_that_went_back_in_time_heals(server: RedisServer, store: RedisViewStore, world: World) -> None:
    set_back(server, store, world)
    assert_equal_to_the_log(world, store)


def test_twin_without_tokens_what_was_lost_stays_lost(
    server: RedisServer, store: RedisViewStore, world: World, blind: Callable[[RedisViewStore], None]
) -> None:
    blind(store)
    set_back(server, store, world)
    with pytest.raises(AssertionError):
        assert_equal_to_the_log(world, store)


@pytest.fixture
def blind(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[RedisViewStore], None]:
    """Makes a store blind to tokens."""
    monkeypatch.setattr(ProjectionWriter, "is_confirmed", lambda _: True)

    def make(store: RedisViewStore) -> None:
        store._flushers = Flushers(server.settings, dial, Blind, store._topology)

    return make


def test_twin_where_index_entries_are_not_taken_back_they_go_stale(
    server: RedisServer, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = SortedSets.move
    monkeypatch.setattr(SortedSets, "move", lambda self, key, before, after: move(self, key, None, after))
    tail = tail_on(world, store, batch=20, growth=1)
    happen(world, 1)
    settle(tail)
    tail.close()
    with pytest.raises(AssertionError, match="index positive"):
        assert_equal_to_the_log(world, store, by_owner)


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


def together(world: World, one: Projector, begin: Callable[[], Projector]) -> None:
    """Two projectors that do not know of each other fold one view; the second begins where the first has put rows."""
    happen(world, 7)
    settle(one)
    other = begin()
    for seed in range(4):
        happen(world, seed)
        for _ in range(20):
            one.step(0.0)
            other.step(0.0)
    one.close()
    happen(world, 9)
    settle(other)
    other.close()


def test_two_tails_of_one_view_do_no_harm(server: RedisServer, store: RedisViewStore, world: World) -> None:
    with closing(RedisViewStore(server.settings)) as other:
        together(world, tail_on(world, store, batch=30, growth=1), lambda: tail_on(world, other, batch=20, growth=1))
    assert_equal_to_the_log(world, store)


def test_twin_without_tokens_two_tails_fold_events_twice(
    server: RedisServer, store: RedisViewStore, world: World, blind: Callable[[RedisViewStore], None]
) -> None:
    with closing(RedisViewStore(server.settings)) as other:
        blind(store)
        blind(other)
        together(world, tail_on(world, store, batch=30, growth=1), lambda: tail_on(world, other, batch=20, growth=1))
    with pytest.raises(AssertionError):
        assert_equal_to_the_log(world, store)


def storm(world: World, store: RedisViewStore, seed: int, open_store: Callable[[], RedisViewStore]) -> None:
    """Tails that come, go and die while events are written, and one at the end that holds every bucket.

    Some never look around again, so that they go on with buckets that others have taken over.
    """
    chance, at_work, number = stranger(seed), list[tuple[Projector, RedisViewStore]](), 0
    for _ in range(120):
        match chance.choice(["start", "end", "die", "work", "work", "work", "write"]):
            case "start" if len(at_work) < 5:
                number += 1
                own = open_store()
                look = chance.choice([0.0, 60.0])
                at_work.append((tail_on(world, own, member=f"tail {number}", look=look, lease=0.05, batch=7), own))
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
    last.close()
    for tail, own in at_work:
        tail.close()
        own.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_tails_that_come_go_and_die_leaves_the_rows_of_the_log(
    server: RedisServer, store: RedisViewStore, world: World, seed: int
) -> None:
    storm(world, store, seed, lambda: RedisViewStore(server.settings))
    assert_equal_to_the_log(world, store)


def test_twin_without_tokens_a_storm_spoils_rows(
    server: RedisServer, store: RedisViewStore, blind: Callable[[RedisViewStore], None]
) -> None:
    def open_store() -> RedisViewStore:
        blind(own := RedisViewStore(server.settings))
        return own

    blind(store)
    assert any(spoilt(server, store, seed, open_store) for seed in range(20))


def spoilt(server: RedisServer, store: RedisViewStore, seed: int, open_store: Callable[[], RedisViewStore]) -> bool:
    """Whether a storm on an empty Redis leaves anything wrong."""
    with server.client() as client, memory(app, now=NOW) as world:
        client.flushall()
        storm(world, store, seed, open_store)
        try:
            assert_equal_to_the_log(world, store)
        except AssertionError:
            return True
    return False


def quiet(tail: Projector) -> bool:
    return tail.step(0.0) == 0 and tail.caught_up()


def whole(tail: Projector, store: RedisViewStore) -> bool:
    """Whether a projector folds every bucket of every live generation."""
    live = [store.registry(view.name).live_of(view.hash) for view in VIEWS]
    held = [writer.generation.id for writer in tail.writers() if len(writer.buckets) == writer.generation.buckets]
    return all(generation is not None and generation.id in held for generation in live)
