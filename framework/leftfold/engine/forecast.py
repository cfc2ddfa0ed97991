"""What a rebuild of so many events would cost on so much hardware: tasks, time, memory, and what holds it up.

Every constant is a figure of benchmarks/results/latest.md or follows from some; `python -m benchmarks slope` measures
how well the model does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

__all__ = [
    "BASE_MB", "EVENTS_PER_ROW", "FOLD_RATE", "ITEM_KB", "PER_TASK", "ROW_KB", "SORT_RATE", "START_SECONDS",
    "Forecast", "Hardware", "Workload", "forecast",
]  # fmt: skip

FOLD_RATE = 88_000
"""Events per second and core that fold in place, sink and seal included: half of `rebuild.baskets`, on two cores."""
SORT_RATE = 55_000
"""Events per second and core that are sorted first: half of `year.rebuild.product_sales`' 1,802,892 in 16.3 s."""
EMIT_SHARE = 0.5
"""How much of that is spent before the sort, by tasks of source partitions, and not behind it, by tasks of buckets."""
READ_RATE = 1_580_000
"""Events per second that one broker hands out: `rebuild.reading`, a lower bound, since clients shared its machine."""
WRITE_RATE = 213_000
"""Rows per second that one Redis takes: `sink.rows`."""
START_SECONDS = 8.0
"""From the launch of Spark to the first event: 6.5 to 8.7 s on two cores."""
PER_TASK = 8
"""Source partitions that a task reads, one after another, where there are more of them than cores."""
BASE_MB = 560
"""Of a task besides rows: the largest of the year's was `year.peak.spark task`, 577 MB, with 13,000 rows in it."""
EXECUTOR_MB = 1_500
"""Of Spark's JVM on each machine: `year.peak.spark driver and executor`, 1,043 and 1,879 MB in two runs."""
ITEM_KB = 0.45
"""Of what a process holds of an event that it sorts in memory: a tuple with key, time and a body of 120 bytes."""
ROW_KB = 1.0
"""Of a row in a task's dict: a dataclass of some five fields, its key, and its encoded form while it is written."""
STORED_KB = 0.46
"""Of a row in Redis with its place in the key list: `year.peak.redis`, 103.7 MB, over the year's 227,000 rows."""
EVENTS_PER_ROW = 8
"""Where nobody says how many rows there are. A basket of the reference application has 11.6 events."""


@dataclass(frozen=True)
class Workload:
    """What is to be rebuilt.

    Args:
        partitions: of the topics it reads, in all. rows: how many there are at the end; None = one per 8 events.
        stream_keyed: it is folded in place. Any other view is sorted into `buckets` first.
    """

    events: int
    partitions: int
    stream_keyed: bool
    buckets: int = 16
    rows: int | None = None

    @property
    def keys(self) -> int:
        """How many rows there are at the end."""
        return ceil(self.events / EVENTS_PER_ROW) if self.rows is None else self.rows


@dataclass(frozen=True)
class Hardware:
    """What it runs on: Spark's cores over some machines, brokers that share the partitions, servers of Redis."""

    cores: int
    machines: int = 1
    brokers: int = 1
    stores: int = 1


@dataclass(frozen=True)
class Forecast:
    """What it comes to.

    Args:
        running: tasks at once. limit: what holds it up: more of anything else would not help.
        task_mb: of each task. machine_mb: of each machine of Spark's. stored_mb: of all of Redis, for this generation.
    """

    tasks: int
    running: int
    seconds: float
    limit: str
    task_mb: int
    machine_mb: int
    stored_mb: int


def forecast(work: Workload, on: Hardware) -> Forecast:
    """The model: the slowest of folding, reading and writing, behind Spark's start."""
    reading, folding = min(on.cores, work.partitions), min(on.cores, work.buckets)
    if work.stream_keyed:
        folds = work.events / (FOLD_RATE * reading)
        tasks, running = _tasks(work.partitions, on.cores), reading
        narrow = "partitions" if work.partitions < on.cores else "cores"
    else:
        emit, fold = EMIT_SHARE / reading, (1 - EMIT_SHARE) / folding
        folds = work.events / SORT_RATE * (emit + fold)
        tasks, running = _tasks(work.partitions, on.cores) + folding, max(reading, folding)
        narrow = "cores" if on.cores <= min(work.partitions, work.buckets) else _fewer(work)
    phases = {
        narrow: folds,
        "brokers": work.events / (READ_RATE * on.brokers),
        "stores": work.keys / (WRITE_RATE * on.stores),
    }
    limit = max(phases, key=lambda name: phases[name])
    held = ceil(work.keys / work.partitions) if work.stream_keyed else 0
    task = BASE_MB + held * ROW_KB / 1024
    each = ceil(running / on.machines)
    return Forecast(
        tasks=tasks,
        running=running,
        seconds=START_SECONDS + phases[limit],
        limit=limit,
        task_mb=ceil(task),
        machine_mb=ceil(EXECUTOR_MB + each * task),
        stored_mb=ceil(work.keys * STORED_KB / 1024),
    )


def _tasks(partitions: int, cores: int) -> int:
    """About eight partitions a task, in multiples of the cores."""
    return min(partitions, max(1, ceil(partitions / (PER_TASK * cores))) * cores)


def _fewer(work: Workload) -> str:
    return "buckets" if work.buckets < work.partitions else "partitions"
