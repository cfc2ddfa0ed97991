"""A micro-batch of a stream that meets a projector, or another stream, between reading its rows and writing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leftfold.client import Views
from leftfold.engine.streaming.microbatch import OutOfStep
from leftfold.ports.flush import Snapshot
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import connect
from leftfold.redis.flusher import Flusher, Flushers
from leftfold.testing import fold
from tests.domains.shop import checkouts, household_spend, product_sales
from tests.engine.fold_bench import Batches, FoldBench, out
from tests.redis.server import RedisServer
from tests.redis.twins import Blind

pytestmark = pytest.mark.servers

VIEWS = pytest.mark.parametrize("view", [checkouts, household_spend, product_sales], ids=lambda view: view.name)
FIRST = [out(f"b-{number}", f"h-{number % 3}", apple=1) for number in range(6)]
THEN = [out(f"b-{number}", f"h-{number}", **{f"pear-{number}": 2}) for number in range(40)]
"""Of other rows, too, some of which lie in the buckets that the first ones touch."""


class Overtaken:
    """A store on which, once, something happens behind a read."""

    def __init__(self, store: Any, happen: Callable[[], None]) -> None:
        self._store, self._happen = store, happen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, *asked: Any) -> Snapshot:
        found: Snapshot = self._store.read(*asked)
        happen, self._happen = self._happen, lambda: None
        happen()
        return found


def overtaken(server: RedisServer, store: RedisViewStore, view: Any, made: type[Flusher]) -> tuple[str, bool]:
    """Why a batch ended that a projector overtook ('' = it did not), and whether the rows are the log's."""
    with server.client() as client:
        client.flushall()
    store._flushers = Flushers(server.settings, connect, made, store._topology)
    bench: Any = FoldBench(view)
    bench.store, bench.views = store, Views(store)
    batches = Batches(bench, view)
    for event in FIRST:
        bench.write(event)

    def meanwhile() -> None:
        for event in THEN:
            bench.write(event)
        bench.settle()

    end, bench.store, why = bench.log.reader().ends(["baskets.events"]), Overtaken(store, meanwhile), ""
    try:
        batches.fold(end)
    except OutOfStep as error:
        why = str(error)
    bench.store = store
    bench.settle()
    return why, bench.rows(view) == dict(fold(view, *FIRST, *THEN))


@VIEWS
def test_a_batch_that_a_tail_overtook_writes_nothing(server: RedisServer, store: RedisViewStore, view: Any) -> None:
    why, right = overtaken(server, store, view, Flusher)
    assert "written meanwhile" in why
    assert right


@VIEWS
def test_twin_without_tokens_events_count_twice(server: RedisServer, store: RedisViewStore, view: Any) -> None:
    assert not overtaken(server, store, view, Blind)[1]
