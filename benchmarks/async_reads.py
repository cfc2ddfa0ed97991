"""Reads of 32 coroutines at a time: our asyncio readers against redis-py's asyncio client, with the same commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

import redis.asyncio

from benchmarks.figure import Figure
from leftfold import Event, FoldView
from leftfold.client import Views
from leftfold.engine.views.folded_rows import bucket_of
from leftfold.engine.views.generations import change, open_generation
from leftfold.local import Servers
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, RowChange
from leftfold.ports.queries import GetRow, IndexRange, Matching, Query, Rows
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.reads import compile_query

__all__ = ["run"]

A = TypeVar("A")
Read: TypeAlias = Callable[[str], Awaitable[object]]
READERS, READS, ROWS, BUCKETS = 32, 20_000, 1_000, 16
ROUNDS = 3


class Sold(Event, category="sales", key="product"):
    """Something was sold."""

    product: str


@dataclass(frozen=True)
class Sales:
    """A row as small as most."""

    product: str
    lines: int
    total: Decimal


def _never(row: Sales | None, event: Sold) -> Sales | None:
    return row


view = FoldView("sold", events=Sold, row=Sales, key=lambda e: e.product, evolve=_never, indexes=("total",))


def run(servers: Servers) -> list[Figure]:
    """Rounds of each in turn, the best of each against the other."""
    store = RedisViewStore(RedisSettings(url=servers.redis))
    try:
        generation = _filled(store)
        return asyncio.run(_figures(store, servers.redis, generation))
    finally:
        store.close()


def _filled(store: RedisViewStore) -> Generation:
    generation = open_generation(store, view, {"sales.events": 4}, Phase.SEALED, BUCKETS)
    change(store, view.name, lambda registry: registry.pointed(generation))
    changes: dict[int, list[RowChange]] = {bucket: [] for bucket in range(BUCKETS)}
    for number in range(ROWS):
        row = Sales(f"p-{number}", number % 90, Decimal(number) / 4)
        entries, fields = view.rows.index_entries(row), view.rows.encode(row)
        changes[bucket_of(generation, row.product, 0)].append(RowChange(row.product, fields, None, None, entries))
    at = Position({"sales.events": dict.fromkeys(range(4), ROWS)})
    flushes = [
        BucketFlush(
            generation, number, "", Checkpoint(at, rows=len(some)), view.rows.columns, view.rows.indexes, tuple(some)
        )
        for number, some in changes.items()
    ]
    store.flush(flushes)
    return generation


async def _figures(store: RedisViewStore, url: str, generation: Generation) -> list[Figure]:
    pool: Any = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=64, protocol=2)
    client = redis.asyncio.Redis.from_pool(pool)
    reader = Views(store)[view]
    peer = _Peer(client, generation)
    try:
        gets = await _compared(reader.aget, peer.get)
        tops = await _compared(lambda key: reader.atop("total", 10), peer.top, reads=READS // 10)
    finally:
        await client.aclose()
        await store.aclose()
    note = f"peer: redis-py asyncio, pool of 64, pipelines of the same commands, rows decoded; {READERS} coroutines"
    return [
        Figure("async_reads.get", gets[0], "reads/s", peer=gets[1], goal=5, note=note),
        Figure("async_reads.top", tops[0], "reads/s", peer=tops[1], note=note),
    ]


class _Peer:
    """The same questions asked with redis-py's asyncio client."""

    def __init__(self, client: redis.asyncio.Redis, generation: Generation) -> None:
        self._client, self._generation = client, generation

    async def get(self, key: str) -> object:
        """One row by key."""
        seen = await self._ask(GetRow(self._generation, bucket_of(self._generation, key, 0), key))
        return None if seen.fields is None else view.rows.decode(seen.fields)

    async def top(self, key: str) -> object:
        """The ten largest."""
        matches = await self._ask(Matching(self._generation, (IndexRange("total"),), 10, backwards=True))
        hits = sorted(
            ((value, bucket, key) for bucket, some in matches.found[0].items() for value, key in some), reverse=True
        )
        snapshot = await self._ask(Rows(self._generation, tuple((bucket, key) for _, bucket, key in hits[:10])))
        return [view.rows.decode(fields) for fields in snapshot.rows if fields is not None]

    async def _ask(self, question: Query[A]) -> A:
        query = compile_query(question)
        async with self._client.pipeline(transaction=False) as pipe:
            for command in query.commands:
                pipe.execute_command(*command)
            return query.answer(await pipe.execute())


async def _compared(ours: Read, peer: Read, reads: int = READS) -> tuple[float, float]:
    """Reads per second of each: the best of some rounds, taken in turn."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for read, found in zip((ours, peer), rates, strict=True):
            found.append(await _rate(read, reads))
    return max(rates[0]), max(rates[1])


async def _rate(read: Read, reads: int) -> float:
    async def one(number: int) -> None:
        for turn in range(reads // READERS):
            if await read(f"p-{(number * 31 + turn) % ROWS}") is None:
                raise RuntimeError("a row is missing")

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(READERS)))
    return reads / (time.perf_counter() - began)
