"""SIGKILL of a projector inside any of its writes: its successor ends with the rows of the log."""

from __future__ import annotations

import itertools
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.views.projector import Projector
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.redis import RedisViewStore
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.redis.killed_tail import BATCH, COMMANDS
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import assert_equal_to_the_log, settle

pytestmark = pytest.mark.servers

SEED = 5
VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
WRITES = (2, 4, 6, 7, 8, 9, 12, 15, 18, 25)
OFTEN = (4, 7, 12)
"""Those that are tried in every run; all are in the campaign of faults."""


@pytest.fixture(scope="module")
def world() -> World:
    """The log that the killed one read, and what memory makes of it."""
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(SEED), COMMANDS)))
        return world


@pytest.mark.parametrize(
    ("how", "write"),
    [
        pytest.param(how, write, marks=() if write in OFTEN else pytest.mark.faults)
        for how, write in itertools.product(("in", "behind"), WRITES)
    ],
)
def test_killed_in_a_write_or_behind_it_it_leaves_whole_flushes_only(
    server: RedisServer, store: RedisViewStore, world: World, write: int, how: str
) -> None:
    kill_in(server, write, how)
    assert wrong(store, world) == []


def test_twin_without_a_transaction_some_rows_are_folded_twice(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    def torn(write: int) -> list[str]:
        kill_in(server, write, "torn")
        return wrong(store, world)

    assert any(map(torn, WRITES))


def kill_in(server: RedisServer, write: int, how: str) -> None:
    """Runs a projector on an empty Redis until it is killed in one of its writes, or before the answer to it."""
    with server.client() as client:
        client.flushall()
    words = [sys.executable, "-m", "tests.redis.killed_tail", server.settings.url, str(SEED), str(write), how]
    assert subprocess.run(words, check=False, timeout=240.0).returncode == -9, "it was not killed: it wrote less often"


def wrong(store: RedisViewStore, world: World) -> list[str]:
    """The views that are in any way not what the log makes of them once a successor has caught up."""
    tail = Projector(app.views, world.log.reader, store, look=0.0, batch=BATCH, member="tail")
    settle(tail)
    tail.close()
    found = []
    for view in VIEWS:
        try:
            assert_equal_to_the_log(world, store, view)
        except AssertionError:
            found.append(view.name)
    return found
