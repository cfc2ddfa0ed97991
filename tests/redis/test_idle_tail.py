"""A Redis that went back in time while nothing happens is noticed, though nothing is flushed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from leftfold import memory
from leftfold.client import Views
from leftfold.engine.views import subscription as group
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.memory import World
from leftfold.redis import RedisViewStore
from leftfold.testing import fold
from tests.domains.ledger import app, summary
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log of its own and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        yield world


def go_back(server: RedisServer, store: RedisViewStore, world: World) -> Projector:
    """Lets a projector finish, and then gives the server the disk from before; nothing happens any more."""
    tail = tail_on(world, store)
    happen(world, 1)
    settle(tail)
    saved = server.saved()
    happen(world, 2)
    settle(tail)
    server.kill()
    server.restore(saved)
    server.start()
    return tail


def is_up_to_date(tail: Projector, store: RedisViewStore, world: World) -> bool:
    """Whether one view has the rows of the log after one step more."""
    try:
        tail.step(0.0)
    except InfrastructureError:
        return False
    events = [recorded.event for recorded in world.events("ledgers")]
    return dict(Views(store)[summary].items()) == fold(summary, *events)


def test_a_tail_with_nothing_to_do_refolds_what_the_store_lost(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    tail = go_back(server, store, world)
    wait_until(lambda: is_up_to_date(tail, store, world), "the tail to notice by itself")
    settle(tail)
    assert_equal_to_the_log(world, store)
    tail.close()


def test_twin_a_tail_that_never_looks_leaves_older_rows(
    server: RedisServer, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "CONFIRM_SECONDS", float("inf"))
    tail = go_back(server, store, world)
    assert not any(is_up_to_date(tail, store, world) for _ in range(300))
    tail.close()
