"""A live projector that follows one view in this process, from nothing to the end of the log."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import Any

import redis as redis_py

from leftfold.client import Reader
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.views.projector import Projector
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model.view import View
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisSettings, RedisViewStore

__all__ = ["catch_up", "forget_views", "rows_of"]

LIMIT_SECONDS = 600


def catch_up(servers: Servers, view: View[Any, Any], events: int, store: ViewStore | None = None) -> float:
    """Events a second, from the first step that reads any until all of them are folded and the rows are in Redis.

    Raises:
        SystemExit: the projector reads another number of events, or does not get to the end.
    """
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    store = store or RedisViewStore(RedisSettings(url=servers.redis))
    tail = Projector([view], partial(KafkaLogReader, kafka), store)
    tuned_gc()
    gc.collect()
    began, done, deadline = 0.0, 0, time.monotonic() + LIMIT_SECONDS
    while done < events or not tail.caught_up():
        before = time.perf_counter()
        count = tail.step()
        if count and not began:
            began = before
        done += count
        if time.monotonic() > deadline:
            raise SystemExit(f"the tail of {view.name} has folded {done:,} of {events:,} in {LIMIT_SECONDS} s")
    seconds = time.perf_counter() - began
    tail.close()
    store.close()
    if done != events:
        raise SystemExit(f"the tail of {view.name} has folded {done:,} events, not {events:,}")
    return events / seconds


def forget_views(servers: Servers) -> None:
    """Empties Redis, so that the next projector begins from nothing."""
    with redis_py.Redis.from_url(servers.redis) as client:
        client.flushall()


def rows_of(servers: Servers, view: View[Any, Any]) -> list[Any]:
    """Every row that readers see."""
    store = RedisViewStore(RedisSettings(url=servers.redis))
    try:
        return [row for _, row in Reader(view, store).items()]
    finally:
        store.close()
