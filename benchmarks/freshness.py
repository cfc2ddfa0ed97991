"""How soon a reader sees an event: from the return of its commit to the row, with everything on one machine.

The writer commits as a processor does, every 5 ms, in a process of its own; the projector is another, the one that
`leftfold run` starts; the reader asks for the row of a sampled event with `get(after=its position)`. What it asks late
because it still waited for the sample before counts as freshness too.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from benchmarks.figure import Figure
from benchmarks.purses import TOPIC, Total, create, purses
from benchmarks.steady import Committed, commit_steadily
from benchmarks.tailing import forget_views
from leftfold.client import Reader
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.errors import ViewNotBuilt
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model.position import Position
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.runtime.workers.view_workers import follow

__all__ = ["run"]

RATES, SECONDS, WARM_SECONDS = (5_000, 20_000), 20.0, 2.0
P50_GOAL, P99_GOAL = 5.0, 20.0
START_SECONDS, LATEST_SECONDS = 60.0, 30.0


def run(servers: Servers, seconds: float = SECONDS) -> list[Figure]:
    """Each rate with a projector of its own, after two seconds of the same to warm up."""
    create(KafkaSettings(bootstrap_servers=servers.kafka), TOPIC)
    figures: list[Figure] = []
    for rate in RATES:
        forget_views(servers)
        with _followed(servers) as reader:
            _measured(servers, reader, rate, WARM_SECONDS)
            times, achieved = _measured(servers, reader, rate, seconds)
        figures += _figures(rate, times, achieved)
    return figures


def _figures(rate: int, times: list[float], achieved: float) -> list[Figure]:
    """Median and 99th percentile; without a goal when the writer did not keep the rate up."""
    kept = achieved >= 0.95 * rate
    note = f"{achieved:,.0f} events/s, {len(times):,} samples, {os.cpu_count()} cores"
    note += "" if kept else "; too slow a writer to compare with the goal"
    found = {"p50": (statistics.median(times), P50_GOAL), "p99": (times[int(len(times) * 0.99)], P99_GOAL)}
    return [
        Figure(
            f"freshness.{rate // 1000}k_{name}",
            seconds * 1000,
            "ms",
            goal=goal if kept else None,
            smaller=True,
            note=note,
        )
        for name, (seconds, goal) in found.items()
    ]


@contextmanager
def _followed(servers: Servers) -> Iterator[Reader[Total, str]]:
    """A reader of the view, while a process follows it."""
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    tail = context.Process(target=_follow, args=(servers.kafka, servers.redis, done))
    tail.start()
    store = RedisViewStore(RedisSettings(url=servers.redis))
    try:
        reader = Reader(purses, store)
        _wait_live(reader)
        yield reader
    finally:
        done.set()
        tail.join()
        store.close()


def _follow(kafka: str, redis: str, done: Event) -> None:
    stop = threading.Event()

    def stopped() -> None:
        done.wait()
        stop.set()

    def report(what: str, details: Mapping[str, Any]) -> None:
        """Nobody reads what it says."""

    threading.Thread(target=stopped, daemon=True).start()
    tuned_gc()
    settings = KafkaSettings(bootstrap_servers=kafka), RedisSettings(url=redis)
    follow([purses], *settings, stop, report, options={"member": "tail"})


def _wait_live(reader: Reader[Total, str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            reader.describe()
        except ViewNotBuilt as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"no tail within {START_SECONDS} s: {error}") from error
            time.sleep(0.05)
        else:
            return


def _measured(servers: Servers, reader: Reader[Total, str], rate: int, seconds: float) -> tuple[list[float], float]:
    """Sorted seconds from commit to row of every sample, and the rate that the writer really had."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    writer = context.Process(target=commit_steadily, args=(servers.kafka, rate, seconds, there))
    writer.start()
    there.close()
    times: list[float] = []
    try:
        count, took = _sampled(reader, here, times)
    finally:
        writer.join()
    return sorted(times), count / took


def _sampled(reader: Reader[Total, str], samples: Connection, times: list[float]) -> tuple[int, float]:
    """Follows every sample; returns the writer's last word, how many events in how many seconds."""
    while True:
        told = samples.recv()
        if not isinstance(told, Committed):
            count, took = told
            return count, took
        after = Position.at(TOPIC, told.partition, told.next_offset)
        if reader.get(told.key, after=after, timeout=LATEST_SECONDS) is None:
            raise SystemExit(f"{told.key} has no row after {after}")
        times.append(time.monotonic() - told.at)
