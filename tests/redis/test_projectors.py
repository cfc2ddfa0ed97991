"""A projector on a real Redis ends with the rows of the log, whatever happened to the server meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leftfold import memory
from leftfold.memory import World
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import SortedSets
from leftfold.redis.flusher import Flusher
from tests.domains.ledger import app, by_owner
from tests.redis.flushes import Blind
from tests.redis.ledgers import NOW, assert_equal_to_the_log, happen, heals_after, projector_on, settle
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log of its own and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        yield world


@pytest.mark.parametrize("made", [Flusher, Blind], ids=["", "twin"])
def test_a_redis_that_went_back_in_time_heals(
    server: RedisServer, store: RedisViewStore, world: World, made: type[Flusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin compares no tokens and looks for none: what was lost stays lost."""

    def lose(happens: Callable[[], object]) -> None:
        saved = server.saved()
        happens()
        server.kill()
        server.restore(saved)
        server.start()

    assert heals_after(lose, world, store, made, monkeypatch) is (made is Flusher)


def test_twin_where_index_entries_are_not_taken_back_they_go_stale(
    store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = SortedSets.move
    monkeypatch.setattr(SortedSets, "move", lambda self, key, before, after: move(self, key, None, after))
    projector = projector_on(world, store, batch=20, growth=1)
    happen(world, 1)
    settle(projector)
    projector.close()
    with pytest.raises(AssertionError, match="index positive"):
        assert_equal_to_the_log(world, store, by_owner)
