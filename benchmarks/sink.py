"""How fast finished rows go into Redis: the bulk sink against redis-py's pipeline, the same rows and commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import redis

from benchmarks.figure import Figure
from leftfold import Event, FoldView
from leftfold.engine.views.generations import open_generation
from leftfold.local import Servers
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Generation, Phase
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore

__all__ = ["run"]

ROWS, CHUNK = 300_000, 500


class Sold(Event, category="sales", key="product"):
    """Something was sold."""

    product: str


@dataclass(frozen=True)
class Sales:
    """Six fields, as many as a usual row has."""

    product: str
    lines: int
    quantity: int
    sales: str
    discount: str
    coupons: str


def _never(row: Sales | None, event: Sold) -> Sales | None:
    return row


view = FoldView("sales", events=Sold, row=Sales, evolve=_never)


def run(servers: Servers) -> list[Figure]:
    """Three rounds of each, the best of each against the other."""
    settings = RedisSettings(url=servers.redis)
    ours = max(_ours(settings) for _ in range(3))
    peer = max(_peer(servers.redis) for _ in range(3))
    return [Figure("sink.rows", ours, "rows/s", peer=peer, goal=4, note="peer: redis-py, MULTI pipelines of 500 rows")]


def _rows() -> Iterator[BulkRow]:
    for n in range(ROWS):
        fields = (b"p-%d" % n, b"%d" % (n % 90), b"%d" % n, b"%d.25" % n, b"%d.50" % (n % 100), b"0.00")
        yield BulkRow(f"p-{n}", fields, n)


def _ours(settings: RedisSettings) -> float:
    store, sink = RedisViewStore(settings), RedisBulkSink(settings)
    generation = open_generation(store, view, {"sales.events": 1}, Phase.BULK)
    rows = list(_rows())
    began = time.perf_counter()
    sink.write(generation, 0, view.rows.columns, (), rows)
    seconds = time.perf_counter() - began
    _forget(store, generation)
    sink.close()
    return ROWS / seconds


def _forget(store: RedisViewStore, generation: Generation) -> None:
    registry = store.registry(view.name)
    store.change_registry(view.name, registry, registry.without(generation.id))
    store.unlink(generation)
    store.close()


def _peer(url: str) -> float:
    client, rows, columns = redis.Redis.from_url(url), list(_rows()), [c.decode() for c in view.rows.columns]
    began = time.perf_counter()
    for start in range(0, ROWS, CHUNK):
        pipe = client.pipeline(transaction=True)
        for key, fields, version, _ in rows[start : start + CHUNK]:
            pipe.hset(f"peer:{key}", mapping={**dict(zip(columns, fields, strict=True)), "@version": version or 0})
            pipe.zadd("peer#", {key: 0})
        pipe.execute()
    seconds = time.perf_counter() - began
    client.flushdb()
    client.close()
    return ROWS / seconds
