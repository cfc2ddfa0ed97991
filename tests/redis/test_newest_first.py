"""Of several generations of a view the newest is flushed first, so that what goes live is never behind what was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from leftfold import memory
from leftfold.engine.views.generations import open_generation
from leftfold.memory import World
from leftfold.ports.flush import BucketFlush, Phase
from leftfold.ports.protocols import Flushing
from leftfold.redis import RedisViewStore
from tests.domains.ledger import app, summary
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import happen, settle, tail_on

pytestmark = pytest.mark.servers


class Told(RedisViewStore):
    """Remembers the generations in the order of their flushes."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.settings)
        self.order: list[str] = []

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Flushes."""
        self.order += [flushes[0].generation.id] if flushes and flushes[0].generation.view == summary.name else []
        return super().begin_flush(flushes)


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log of its own and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        yield world


def test_the_newest_generation_of_a_view_is_flushed_first(server: RedisServer, world: World) -> None:
    store = Told(server)
    tail = tail_on(world, store)
    happen(world, 1)
    settle(tail)
    (old,) = store.registry(summary.name).generations
    topics = store.registry(summary.name).generations[old].topics
    new = open_generation(store, summary, topics, Phase.SEALED).id
    settle(tail)
    store.order.clear()
    for seed in range(5):
        happen(world, seed, 20)
        settle(tail)
    assert len(store.order) >= 10
    assert store.order == [new, old] * (len(store.order) // 2)
    tail.close()
    store.close()
