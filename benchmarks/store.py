"""The view store on Redis: how fast rows are written and read, and how soon a reader that waits has its row."""

from __future__ import annotations

import asyncio
import queue
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

import redis.asyncio

from benchmarks.figure import Figure
from leftfold import Event, FoldView, Position
from leftfold.client import Reader, Views
from leftfold.engine.views.folded_rows import bucket_of
from leftfold.engine.views.generations import change, open_generation
from leftfold.local import Servers
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, RowChange
from leftfold.ports.queries import GetRow, IndexRange, Matching, Query, Rows
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.redis.reads import compile_query

__all__ = ["async_reads", "sink", "waiting"]

A = TypeVar("A")
Read: TypeAlias = Callable[[str], Awaitable[object]]
SINK_ROWS, CHUNK = 300_000, 500
READERS, READS, ROWS, BUCKETS, ROUNDS = 32, 20_000, 1_000, 16, 3
VISITS, FLUSHES = "visits.events", 500
FIRST_PAUSE, LAST_PAUSE = 0.0005, 0.004


class Sold(Event, category="sales", key="product"):
    """A product was sold."""

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


@dataclass(frozen=True)
class Total:
    """A row as small as most."""

    product: str
    lines: int
    total: Decimal


@dataclass(frozen=True)
class Count:
    """How often."""

    times: int


def _never(row: A | None, event: Sold) -> A | None:
    return row


sales = FoldView("sales", events=Sold, row=Sales, evolve=_never)
totals = FoldView("sold", events=Sold, row=Total, key=lambda e: e.product, evolve=_never, indexes=("total",))
visits = FoldView("visits", events=Sold, row=Count, evolve=_never)


def sink(servers: Servers) -> list[Figure]:
    """The bulk sink against redis-py's pipeline, the same rows and commands: the best of three rounds of each."""
    settings = RedisSettings(url=servers.redis)
    ours = max(_sink_rate(settings) for _ in range(3))
    peer = max(_pipeline_rate(servers.redis) for _ in range(3))
    return [Figure("sink.rows", ours, "rows/s", peer=peer, goal=4, note="peer: redis-py, MULTI pipelines of 500 rows")]


def _rows() -> Iterator[BulkRow]:
    for n in range(SINK_ROWS):
        fields = (b"p-%d" % n, b"%d" % (n % 90), b"%d" % n, b"%d.25" % n, b"%d.50" % (n % 100), b"0.00")
        yield BulkRow(f"p-{n}", fields, n)


def _sink_rate(settings: RedisSettings) -> float:
    with closing(RedisViewStore(settings)) as store, RedisBulkSink(settings) as bulk:
        generation = open_generation(store, sales, {"sales.events": 1}, Phase.BULK)
        rows = list(_rows())
        began = time.perf_counter()
        bulk.write(generation, 0, sales.rows.columns, (), rows)
        seconds = time.perf_counter() - began
        registry = store.registry(sales.name)
        store.change_registry(sales.name, registry, registry.without(generation.id))
        store.unlink(generation)
    return SINK_ROWS / seconds


def _pipeline_rate(url: str) -> float:
    client, rows, columns = redis.Redis.from_url(url), list(_rows()), [c.decode() for c in sales.rows.columns]
    began = time.perf_counter()
    for start in range(0, SINK_ROWS, CHUNK):
        pipe = client.pipeline(transaction=True)
        for key, fields, version, _ in rows[start : start + CHUNK]:
            pipe.hset(f"peer:{key}", mapping={**dict(zip(columns, fields, strict=True)), "@version": version or 0})
            pipe.zadd("peer#", {key: 0})
        pipe.execute()
    seconds = time.perf_counter() - began
    client.flushdb()
    client.close()
    return SINK_ROWS / seconds


def async_reads(servers: Servers) -> list[Figure]:
    """32 coroutines at a time: our asyncio readers against redis-py's asyncio client, with the same commands."""
    with closing(RedisViewStore(RedisSettings(url=servers.redis))) as store:
        return asyncio.run(_read_figures(store, servers.redis, _filled(store)))


def _filled(store: RedisViewStore) -> Generation:
    generation = open_generation(store, totals, {"sales.events": 4}, Phase.SEALED, BUCKETS)
    change(store, totals.name, lambda registry: registry.pointed(generation))
    changes: dict[int, list[RowChange]] = {bucket: [] for bucket in range(BUCKETS)}
    rows = totals.rows
    for number in range(ROWS):
        row = Total(f"p-{number}", number % 90, Decimal(number) / 4)
        written = RowChange(row.product, rows.encode(row), None, None, rows.index_entries(row))
        changes[bucket_of(generation, row.product, 0)].append(written)
    at = Position({"sales.events": dict.fromkeys(range(4), ROWS)})
    store.flush(
        [
            BucketFlush(generation, bucket, "", Checkpoint(at, rows=len(some)), rows.columns, rows.indexes, tuple(some))
            for bucket, some in changes.items()
        ]
    )
    return generation


async def _read_figures(store: RedisViewStore, url: str, generation: Generation) -> list[Figure]:
    pool: Any = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=64, protocol=2)
    client = redis.asyncio.Redis.from_pool(pool)
    reader = Views(store)[totals]
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
        return None if seen.fields is None else totals.rows.decode(seen.fields)

    async def top(self, key: str) -> object:
        """The ten largest."""
        matches = await self._ask(Matching(self._generation, (IndexRange("total"),), 10, backwards=True))
        hits = sorted(
            ((value, bucket, key) for bucket, some in matches.found[0].items() for value, key in some), reverse=True
        )
        snapshot = await self._ask(Rows(self._generation, tuple((bucket, key) for _, bucket, key in hits[:10])))
        return [totals.rows.decode(fields) for fields in snapshot.rows if fields is not None]

    async def _ask(self, question: Query[A]) -> A:
        query = compile_query(question)
        async with self._client.pipeline(transaction=False) as pipe:
            for command in query.commands:
                pipe.execute_command(*command)
            return query.answer(await pipe.execute())


async def _compared(ours: Read, peer: Read, reads: int = READS) -> tuple[float, float]:
    """Reads per second of each: the best of some rounds, taken in turn."""
    rates = [(await _rate(ours, reads), await _rate(peer, reads)) for _ in range(ROUNDS)]
    return max(rate for rate, _ in rates), max(rate for _, rate in rates)


async def _rate(read: Read, reads: int) -> float:
    async def one(number: int) -> None:
        for turn in range(reads // READERS):
            if await read(f"p-{(number * 31 + turn) % ROWS}") is None:
                raise RuntimeError("a row is missing")

    began = time.perf_counter()
    await asyncio.gather(*map(one, range(READERS)))
    return reads / (time.perf_counter() - began)


def waiting(servers: Servers) -> list[Figure]:
    """Flushes in one thread while another waits for each: woken by notice, and by looking every few ms."""
    with closing(RedisViewStore(RedisSettings(url=servers.redis))) as store:
        generation = open_generation(store, visits, {VISITS: 1}, Phase.SEALED)
        change(store, visits.name, lambda registry: registry.pointed(generation))
        notice, pauses = (
            sorted(_waiting_times(store, generation, Views(store, pause)[visits])) for pause in (None, _Pauses())
        )
    median, peer = statistics.median(notice) * 1000, statistics.median(pauses) * 1000
    note = "peer: looks after 0.5 ms, then ever more rarely, up to every 4 ms"
    return [
        Figure("reads.after_a_flush_p50", median, "ms", peer=peer, goal=1, smaller=True, note=note),
        Figure("reads.after_a_flush_p99", notice[int(FLUSHES * 0.99)] * 1000, "ms"),
    ]


class _Pauses:
    """Waits as a reader without notices does: each time twice as long, up to 4 ms, from the start for each position."""

    def __init__(self) -> None:
        self._pause, self._last = FIRST_PAUSE, 0.0

    def __call__(self, seconds: float) -> None:
        """One pause; a reader that was busy for longer than a pause has begun to wait for another position."""
        if time.monotonic() - self._last > LAST_PAUSE / 2:
            self._pause = FIRST_PAUSE
        time.sleep(min(seconds, self._pause))
        self._pause = min(self._pause * 2, LAST_PAUSE)
        self._last = time.monotonic()


def _waiting_times(store: RedisViewStore, generation: Generation, reader: Reader[Count]) -> Iterator[float]:
    checkpoint = store.checkpoints(generation)[0]
    token, start = checkpoint.token, checkpoint.position.next_offset(VISITS, 0)
    with _reading(reader) as (wanted, found):
        for number in range(start + 1, start + FLUSHES + 1):
            position = Position.at(VISITS, 0, number)
            wanted.put(position)
            time.sleep(0.006)  # the reader is waiting by now, wherever it is between two looks
            token = _flush(store, generation, token, position, number)
            flushed = time.perf_counter()
            yield max(0.0, found.get(timeout=10.0) - flushed)


@contextmanager
def _reading(reader: Reader[Count]) -> Iterator[tuple[queue.Queue[Position | None], queue.Queue[float]]]:
    """A thread that reads after each position it is given, and says when it had the row."""
    wanted: queue.Queue[Position | None] = queue.Queue()
    found: queue.Queue[float] = queue.Queue()

    def read() -> None:
        while (position := wanted.get()) is not None:
            reader.get("v", after=position, timeout=10.0)
            found.put(time.perf_counter())

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    try:
        yield wanted, found
    finally:
        wanted.put(None)
        thread.join()


def _flush(store: RedisViewStore, generation: Generation, expected: str, position: Position, number: int) -> str:
    rows = visits.rows
    some = (RowChange("v", rows.encode(Count(number)), number, None if number == 1 else (), ()),)
    checkpoint = Checkpoint(position, token=f"f-{number}", rows=1)
    if not store.flush([BucketFlush(generation, 0, expected, checkpoint, rows.columns, (), some)]):
        raise RuntimeError("another writer writes this view")
    return checkpoint.token
