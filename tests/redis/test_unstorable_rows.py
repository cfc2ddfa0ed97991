"""Rows that cannot be stored for a moment, on a real Redis: parked or not, a view is what the log says."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.verify.parked_retry import RowRetry
from leftfold.engine.verify.verification import Verify
from leftfold.memory import MemoryLog
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisViewStore
from tests.engine.rebuild.test_unstorable_rows import by_half, by_name, logged, parked, rows, spread, tailed
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers

STEPS = [(0, "a", 3), (0, "a", 1), (0, "b", 1), (0, "b", 2), (0, "c", 5)]
"""`a0` cannot be stored for a moment, `b0` not in the end."""
views = pytest.mark.parametrize("view", [by_name, by_half, spread], ids=lambda view: view.name)


@pytest.fixture
def log(server: RedisServer) -> MemoryLog:
    """The log, and an empty Redis."""
    with server.client() as client:
        client.flushall()
    return logged(STEPS)


@views
def test_a_tail_of_small_flushes_parks_more_is_found_equal_and_a_rebuild_frees_the_row(
    server: RedisServer, store: RedisViewStore, log: MemoryLog, view: View[Any, Any]
) -> None:
    tail = tailed(view, log, [1], store)
    mine = parked(tail, store)
    assert {"a0", "b0"} <= mine
    assert_verified(store, log, view, tail)
    result = rebuild(server, store, log, view).run()
    assert (result.swapped, result.agreement) == (True, Agreement.UNKNOWN)
    live = store.registry(view.name).live_of(view.hash)
    assert live is not None
    assert "a0" not in parked(live, store)
    assert rows(live, store, mine) == rows(tail, store, mine)
    assert_verified(store, log, view, live)


@views
def test_after_a_retry_it_is_equal_to_a_rebuild(
    server: RedisServer, store: RedisViewStore, log: MemoryLog, view: View[Any, Any]
) -> None:
    tail = tailed(view, log, [1], store)
    assert "a0" in RowRetry(view, store, lambda: CommittedLog(log.reader())).run(tail).freed
    assert_verified(store, log, view, tail)
    assert rebuild(server, store, log, view).run().agreement is Agreement.EQUAL


def test_twin_before_it_what_is_parked_is_the_difference(
    server: RedisServer, store: RedisViewStore, log: MemoryLog
) -> None:
    tail = tailed(by_name, log, [1], store)
    assert rebuild(server, store, log, by_name).run().agreement is Agreement.UNKNOWN
    live = store.registry(by_name.name).live_of(by_name.hash)
    assert live is not None
    assert rows(live, store, parked(live, store)) != rows(tail, store, parked(live, store))


def rebuild(server: RedisServer, store: RedisViewStore, log: MemoryLog, view: View[Any, Any]) -> Rebuild:
    """A rebuild in this process; what it replaces stays."""
    return Rebuild(
        view,
        store,
        open_log=lambda: CommittedLog(log.reader()),
        open_reader=log.reader,
        open_sink=partial(RedisBulkSink, server.settings),
        options=RebuildOptions(patience=0.0),
    )


def assert_verified(store: RedisViewStore, log: MemoryLog, view: View[Any, Any], generation: Generation) -> None:
    """Every row, key list and index is what the log says, but for what is parked."""
    verify = Verify(view, store, open_log=lambda: CommittedLog(log.reader()), open_store=partial(_again, store))
    result = verify.run(generation, deep=True)
    assert (result.equal, result.newly, result.rows) == (True, {}, ())


def _again(store: RedisViewStore) -> RedisViewStore:
    """Another store on the same server, for whoever closes it."""
    return RedisViewStore(store._settings)
