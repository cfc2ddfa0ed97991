"""The live projector: against its peers, what its safety costs, and how soon a reader sees an event."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import redis as redis_py

from benchmarks.figure import Figure
from benchmarks.logs import (
    PARTITIONS,
    PURSES,
    Spent,
    Total,
    Transactions,
    create,
    purses,
    shops,
    spendings,
    write_spendings,
)
from benchmarks.peer import against
from benchmarks.workers import CONTEXT, as_thread_event, beside
from leftfold import FoldView
from leftfold.client import Reader
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.views.projector import Projector
from leftfold.errors import ViewNotBuilt
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.row_codec import Fields, RowCodec
from leftfold.model.view import View
from leftfold.ports.flush import BucketFlush
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import RawConnection, connect
from leftfold.redis.flusher import Flusher, Flushers, PendingFlush
from leftfold.runtime.workers.view_workers import follow

__all__ = ["GOALS", "SLOW", "freshness", "overhead", "projector"]

EVENTS, FEW, LIMIT_SECONDS = 300_000, 40_000, 600
FEW_TOPIC = "purses.few"
GOALS = {"quix": 3.0, "bytewax": 3.0, "faust": 60.0}
SLOW = frozenset({"faust"})


def projector(servers: Servers, events: int = EVENTS, few: int = FEW) -> list[Figure]:
    """A sum per key, from the same topic, until everything is folded; the best of three, and of two for each peer.

    All have one process. The clock runs from the first event to the last, without any start. Ours stops when the last
    row is in Redis; a peer's stops when its fold has seen the last event, before it has saved that. The topic was
    written in transactions, with all headers; peers parse the JSON into a dict, ours into a pydantic event.

    - **Ours** writes a row per key that every process can query, with position, checksum and token in the same
      transaction, so that each event counts exactly once. It reads committed records.
    - **Quix Streams** keeps state in RocksDB, beside the process, and a changelog topic; checkpoints every 5 s. No
      other process can query the state. It reads committed records; at least once, its default and faster guarantee.
    - **Bytewax** keeps state in memory. With recovery, which is on here since a sum that does not survive a restart is
      no view, it puts snapshots into SQLite every 10 s: a crash costs that much refolding, and they cannot be queried.
      It reads committed records.
    - **Faust** keeps its Table in memory, with a changelog topic; only its own workers can query it. It reads
      uncommitted records and counts at least once. It gets fewer events, because it takes so long.
    """
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    keys = {PURSES: write_spendings(kafka, events), FEW_TOPIC: write_spendings(kafka, few, FEW_TOPIC)}
    rates = []
    for _ in range(3):
        rates.append(_catch_up(servers, purses, events))
        _check_sum(servers, events)
    ours, keyed = max(rates), max(_catch_up(servers, shops, events) for _ in range(2))
    note = f"{events:,} events of {keys[PURSES]:,} keys"
    figures = [
        Figure("projector.events", ours, "events/s", note=note),
        Figure("projector.events_by_other_key", keyed, "events/s", note=f"{note}, one of which is not the stream's"),
    ]
    for name, goal in GOALS.items():
        topic, count = (FEW_TOPIC, few) if name in SLOW else (PURSES, events)
        note = f"peer on {count:,} events of {keys[topic]:,} keys"
        figures.append(against(name, servers.kafka, topic, count, keys[topic], Figure(
            f"projector.{name}", ours, "events/s", goal=goal, note=note)))  # fmt: skip
    return figures


def _catch_up(servers: Servers, view: View[Any, Any], events: int, store: ViewStore | None = None) -> float:
    """Events a second of a projector in this process and an empty Redis, from the first step that reads any.

    Raises:
        SystemExit: the projector reads another number of events, or does not get to the end.
    """
    _forget_views(servers)
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    store = store or RedisViewStore(RedisSettings(url=servers.redis))
    projector = Projector([view], partial(KafkaLogReader, kafka), store)
    tuned_gc()
    gc.collect()
    began, done, deadline = 0.0, 0, time.monotonic() + LIMIT_SECONDS
    while done < events or not projector.caught_up():
        before = time.perf_counter()
        count = projector.step()
        if count and not began:
            began = before
        done += count
        if time.monotonic() > deadline:
            raise SystemExit(f"the projector of {view.name} has folded {done:,} of {events:,} in {LIMIT_SECONDS} s")
    seconds = time.perf_counter() - began
    projector.close()
    store.close()
    if done != events:
        raise SystemExit(f"the projector of {view.name} has folded {done:,} events, not {events:,}")
    return events / seconds


def _forget_views(servers: Servers) -> None:
    with redis_py.Redis.from_url(servers.redis) as client:
        client.flushall()


def _check_sum(servers: Servers, events: int) -> None:
    """Whether the rows add up to what was written."""
    with closing(RedisViewStore(RedisSettings(url=servers.redis))) as store:
        found = sum(row.cents for _, row in Reader(purses, store).items())
    wanted = sum(event.cents for _, event in spendings(events))
    if found != wanted:
        raise SystemExit(f"the rows add up to {found:,}, not {wanted:,}")


class _Undigested(RowCodec[Total]):
    """Rows without a share in any checksum."""

    @staticmethod
    def digest(key: str, fields: Fields) -> int:
        """Nothing."""
        return 0


class _Unfenced(Flusher):
    """Writes without a WATCH, and compares no tokens."""

    def _send(self, connection: RawConnection, flush: PendingFlush, flushes: Sequence[BucketFlush]) -> None:
        flush.commands = self.commands(flushes)
        flush.replies = connection.begin(flush.commands)


class _UnfencedStore(RedisViewStore):
    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._flushers = Flushers(settings, connect, _Unfenced)


def overhead(servers: Servers, events: int = EVENTS, rounds: int = 4) -> list[Figure]:
    """How much longer an event takes with checksums and tokens than without, from the medians of rounds in turns."""
    write_spendings(KafkaSettings(bootstrap_servers=servers.kafka), events)
    view = FoldView("purses", events=Spent, row=Total, evolve=purses.evolve)
    view.rows = _Undigested(Total, (), "view purses")
    safe, bare = [], []
    for _ in range(rounds):
        safe.append(_catch_up(servers, purses, events))
        bare.append(_catch_up(servers, view, events, _UnfencedStore(RedisSettings(url=servers.redis))))
    ours, peer = statistics.median(safe), statistics.median(bare)
    note = f"{ours:,.0f} events/s, {peer:,.0f} without checksum and tokens"
    return [Figure("projector.overhead", (peer / ours - 1) * 100, "%", goal=15, smaller=True, note=note)]


RATES, SECONDS, WARM_SECONDS = (5_000, 20_000), 20.0, 2.0
P50_GOAL, P99_GOAL = 5.0, 20.0
START_SECONDS, LATEST_SECONDS = 60.0, 30.0


def freshness(servers: Servers, seconds: float = SECONDS) -> list[Figure]:
    """How soon a reader sees an event: from the return of its commit to the row, with everything on one machine.

    The writer commits as a processor does, every 5 ms, in a process of its own; the projector is another, the one that
    `leftfold run` starts; the reader asks for the row of a sampled event with `get(after=its position)`. What it asks
    late because it still waited for the sample before counts as freshness too. Each rate has a projector of its own,
    after two seconds of the same to warm up.
    """
    create(KafkaSettings(bootstrap_servers=servers.kafka), PURSES)
    figures: list[Figure] = []
    for rate in RATES:
        _forget_views(servers)
        with (
            beside((_project, servers.kafka, servers.redis)),
            closing(RedisViewStore(RedisSettings(url=servers.redis))) as store,
        ):
            reader = Reader(purses, store)
            _wait_live(reader)
            _freshness_at(servers, reader, rate, WARM_SECONDS)
            times, achieved = _freshness_at(servers, reader, rate, seconds)
        figures += _freshness_figures(rate, times, achieved)
    return figures


def _freshness_figures(rate: int, times: list[float], achieved: float) -> Iterator[Figure]:
    """Median and 99th percentile; without a goal when the writer did not keep the rate up."""
    kept = achieved >= 0.95 * rate
    note = f"{achieved:,.0f} events/s, {len(times):,} samples, {os.cpu_count()} cores"
    note += "" if kept else "; too slow a writer to compare with the goal"
    found = {"p50": (statistics.median(times), P50_GOAL), "p99": (times[int(len(times) * 0.99)], P99_GOAL)}
    for percentile, (seconds, goal) in found.items():
        name = f"freshness.{rate // 1000}k_{percentile}"
        yield Figure(name, seconds * 1000, "ms", goal=goal if kept else None, smaller=True, note=note)


def _project(stop: Event, kafka: str, redis: str) -> None:
    tuned_gc()
    settings = KafkaSettings(bootstrap_servers=kafka), RedisSettings(url=redis)
    follow([purses], *settings, as_thread_event(stop), lambda *_: None, options={"member": "projector"})


def _wait_live(reader: Reader[Total, str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            reader.describe()
        except ViewNotBuilt as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"no projector within {START_SECONDS} s: {error}") from error
            time.sleep(0.05)
        else:
            return


class Committed(NamedTuple):
    """A sampled event: its key, its place, and when its transaction's commit returned (monotonic seconds)."""

    key: str
    partition: int
    next_offset: int
    at: float


def _freshness_at(servers: Servers, reader: Reader[Total, str], rate: int, seconds: float) -> tuple[list[float], float]:
    """Sorted seconds from commit to row of every sample, and the rate that the writer really had."""
    here, there = CONTEXT.Pipe(duplex=False)
    times: list[float] = []
    with beside((_commit_steadily, servers.kafka, rate, seconds, there)):
        there.close()
        while isinstance(sample := here.recv(), Committed):
            after = Position.at(PURSES, sample.partition, sample.next_offset)
            if reader.get(sample.key, after=after, timeout=LATEST_SECONDS) is None:
                raise SystemExit(f"{sample.key} has no row after {after}")
            times.append(time.monotonic() - sample.at)
    count, took = sample
    return sorted(times), count / took


INTERVAL_SECONDS = 0.005
SAMPLED = 2
"""One event of every so many transactions is followed to its reader."""


def _commit_steadily(stop: Event, address: str, rate: int, seconds: float, samples: Connection) -> None:
    """Commits small transactions at a rate; sends each sample, and at last the number of events and their seconds."""
    tuned_gc()
    settings, options = KafkaSettings(bootstrap_servers=address), {"linger.ms": 1, "retry.backoff.ms": 10}
    transactions, offsets = Transactions(settings, PURSES, Spent, **options), [0]

    def delivered(error: object, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"an event was not written: {error}")
        offsets[0] = message.offset()

    log, count = spendings(int(rate * seconds)), 0
    began, done = time.monotonic(), 0
    while done < int(rate * seconds) and not stop.is_set():
        due = int((time.monotonic() - began) * rate)
        if some := list(islice(log, max(0, due - done))):
            transactions.commit(some, delivered)
            at, key = time.monotonic(), some[-1][1].purse
            done, count = done + len(some), count + 1
            if count % SAMPLED == 0:
                samples.send(Committed(key, partition_of(key.encode(), PARTITIONS), offsets[0] + 1, at))
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began) % INTERVAL_SECONDS))
    samples.send((done, time.monotonic() - began))
    samples.close()
