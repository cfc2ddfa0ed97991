"""Swaps under constant reads on a real Redis: no reader ever sees a missing, a mixed or an older row.

The live generation is ahead when the new one is sealed, and nobody but the rebuild itself brings that up to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, CommittedLog
from leftfold.redis import RedisBulkSink, RedisViewStore
from tests.domains.ledger import app, by_owner, summary
from tests.redis.constant_reads import ConstantReads, past_rows, reading
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = 4
KEYS = {"ledger_summary": [f"l-{n}" for n in range(30)], "by_owner": [f"o/{n}" for n in range(7)]}
named = pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log with hardly anything in it, and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=NOW) as world:
        happen(world, 0, count=3)
        yield world


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No comparison waits for equal places, as between generations that never stand at one: it promises nothing."""
    monkeypatch.setattr("leftfold.engine.rebuild.swap._COMPARE_SECONDS", 0.0)


@named
@pytest.mark.usefixtures("unequal")
def test_no_reader_sees_a_missing_a_mixed_or_an_older_row(
    server: RedisServer, store: RedisViewStore, world: World, view: View[Any, Any]
) -> None:
    assert swapped(server, store, world, view).troubles == {}
    assert_equal_to_the_log(world, store)


@named
@pytest.mark.usefixtures("unequal")
def test_twin_a_swap_that_does_not_wait_shows_older_rows_and_hides_some(
    server: RedisServer, store: RedisViewStore, world: World, view: View[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Swap, "_past", lambda self, *places: True)
    kinds = swapped(server, store, world, view).kinds()
    assert kinds == ({"older", "missing"} if view is by_owner else {"older"})


def swapped(server: RedisServer, store: RedisViewStore, world: World, view: View[Any, Any]) -> ConstantReads:
    """Several rebuilds, each of them overtaken by the log; what was read meanwhile."""
    tail = tail_on(world, store)
    settle(tail)
    work = Rebuild(
        view,
        store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=partial(RedisBulkSink, server.settings),
        options=RebuildOptions(keep=0, patience=0.0),
    )
    past = past_rows(view, everything()) if view is summary else {}
    with reading(server.settings, view, KEYS[view.name], past, lasting=view is by_owner) as reads:
        for number in range(1, ROUNDS):

            def overtaken(
                job: BulkJob, plan: RebuildPlan, tell: ProgressCallback, number: int = number
            ) -> list[BucketResult]:
                results = run_locally(job, plan, tell)
                happen(world, number)
                settle(tail)
                reads.wait_for_passes()
                return results

            work._run = overtaken
            assert work.run().swapped
            reads.wait_for_passes()
    settle(tail)
    tail.close()
    return reads


def everything() -> list[Any]:
    """What will have happened in the end; the same commands make the same events."""
    with memory(app, now=NOW) as oracle:
        happen(oracle, 0, count=3)
        for number in range(1, ROUNDS):
            happen(oracle, number)
        return oracle.events("ledgers")
