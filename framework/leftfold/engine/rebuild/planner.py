"""The plan of a rebuild: what it reads, in how many tasks, on which engine, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from leftfold.engine.log_gaps import check_complete
from leftfold.engine.views.generations import BUCKETS, topics_of
from leftfold.model.position import Position
from leftfold.model.state_codec import number_in
from leftfold.model.view import View
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange
from leftfold.ports.flush import Generation

__all__ = [
    "FOLD_RATE", "MOST_SORTED", "SORT_RATE", "START_SECONDS", "EngineChoice", "Forecast", "Hardware", "RebuildPlan",
    "Workload", "between_decisions", "choose_engine", "forecast", "joint_plan", "plan_ranges", "plan_rebuild",
    "plan_to", "ranges_to",
]  # fmt: skip


FOLD_RATE = 88_000
"""Events per second and core that fold in place, sink and seal included: half of `rebuild.baskets`, on two cores."""
SORT_RATE = 55_000
"""Events per second and core that are sorted first: half of `year.rebuild.product_sales`' 1,802,892 in 16.3 s."""
EMIT_SHARE = 0.5
"""The share of the sorted fold's time that tasks of source partitions spend before the sort. The rest is per bucket."""
READ_RATE = 1_580_000
"""Events per second that one broker delivers: `rebuild.reading`, a lower bound, since clients shared its machine."""
WRITE_RATE = 213_000
"""Rows per second that one Redis takes: `sink.rows`."""
START_SECONDS = 8.0
"""Seconds from the launch of Spark to the first event: 6.5 to 8.7 s on two cores."""
PER_TASK = 8
"""Source partitions that a task reads, one after another, where there are more of them than cores."""
BASE_MB = 560
"""Memory of a task besides rows: the year's largest was `year.peak.spark task`, 577 MB, with 13,000 rows in it.
"""
EXECUTOR_MB = 1_500
"""Memory of Spark's JVM on each machine: `year.peak.spark driver and executor`, 1,043 and 1,879 MB in two runs."""
ITEM_KB = 0.45
"""Memory of an event that a process sorts: a tuple with key, time and a body of 120 bytes."""
ROW_KB = 1.0
"""Memory of a row in a task's dict: its dataclass of some five fields, its key, and its encoded form.
"""
STORED_KB = 0.46
"""Memory of a row in Redis with its key list entry: `year.peak.redis`, 103.7 MB, over the year's 227,000 rows.
"""
EVENTS_PER_ROW = 8
"""Events per row where the number of rows is unknown. A basket of the reference application has 11.6 events."""


@dataclass(frozen=True)
class Workload:
    """The work of a rebuild.

    Args:
        partitions: of the topics it reads, in total.
        rows: how many there are at the end; None = one per 8 events.
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
    """The hardware of a rebuild: Spark's cores over some machines, brokers that share the partitions, Redis servers."""

    cores: int
    machines: int = 1
    brokers: int = 1
    stores: int = 1


@dataclass(frozen=True)
class Forecast:
    """The forecast cost of a rebuild.

    Args:
        running: tasks at once.
        limit: the bottleneck: more of anything else would not help.
        task_mb: of each task.
        machine_mb: of each machine of Spark's.
        stored_mb: of all of Redis, for this generation.
    """

    tasks: int
    running: int
    seconds: float
    limit: str
    task_mb: int
    machine_mb: int
    stored_mb: int


def forecast(work: Workload, on: Hardware) -> Forecast:
    """Forecasts the cost: the slowest of folding, reading and writing, after Spark's start."""
    reading, folding = min(on.cores, work.partitions), min(on.cores, work.buckets)
    if work.stream_keyed:
        folds = work.events / (FOLD_RATE * reading)
        tasks, running = _task_count(work.partitions, on.cores), reading
        narrow = "partitions" if work.partitions < on.cores else "cores"
    else:
        emit, fold = EMIT_SHARE / reading, (1 - EMIT_SHARE) / folding
        folds = work.events / SORT_RATE * (emit + fold)
        tasks, running = _task_count(work.partitions, on.cores) + folding, max(reading, folding)
        fewer = "buckets" if work.buckets < work.partitions else "partitions"
        narrow = "cores" if on.cores <= min(work.partitions, work.buckets) else fewer
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


def _task_count(partitions: int, cores: int) -> int:
    """The number of tasks: about eight partitions each, in multiples of the cores."""
    return min(partitions, max(1, ceil(partitions / (PER_TASK * cores))) * cores)


@dataclass(frozen=True)
class RebuildPlan:
    """A rebuild before it begins; print it.

    Args:
        ends: the stable ends of the log, where every range stops: no decision is cut in two there.
        tasks: the ranges each task reads, one after another.
        cores: how many tasks run at once.
        folded: False for a view that is computed from tables.
        here: it runs in this process, without Spark.
    """

    view: str
    stream_keyed: bool
    topics: dict[str, int]
    ends: Position
    tasks: tuple[tuple[OffsetRange, ...], ...]
    buckets: int
    cores: int
    folded: bool = True
    here: bool = False

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """All ranges to read, by topic and partition."""
        return tuple(sorted(part for task in self.tasks for part in task))

    @property
    def events(self) -> int:
        """The upper bound of the number of events: offsets also count the ends of transactions."""
        return sum(part.end - part.start for part in self.ranges)

    @property
    def seconds(self) -> float:
        """The predicted seconds of the work and of Spark's start."""
        return (0.0 if self.here else START_SECONDS) + self.work

    @property
    def work(self) -> float:
        """The predicted seconds of the work: the longest queue of tasks at a measured rate per core.

        The rates, and what limits them on more machines, are in `leftfold.engine.rebuild.planner`.
        """
        rate = FOLD_RATE if self.stream_keyed else SORT_RATE
        longest = max((sum(p.end - p.start for p in task) for task in self.tasks), default=0)
        return max(longest, self.events / self.cores) / rate

    @property
    def in_process(self) -> RebuildPlan:
        """The same plan in this process, one task after another."""
        return replace(self, cores=1, here=True)

    @property
    def memory(self) -> int:
        """The predicted memory of all tasks at once, in MB.

        A task holds the rows of one partition besides what every task needs; one that sorts leaves that to Spark, which
        spills to disk, while this process holds all that it sorts.
        """
        largest = max((p.end - p.start for p in self.ranges), default=0) if self.stream_keyed else 0
        task = BASE_MB + largest / EVENTS_PER_ROW * ROW_KB / 1024
        held = self.events * ITEM_KB / 1024 if self.here and not self.stream_keyed else 0
        return round(min(self.cores, len(self.tasks)) * task + held)

    @property
    def how(self) -> str:
        """How the events are folded, as text."""
        sorted_ = "sorted by key, then folded" if self.folded else "computed from tables"
        how = "each partition folded in place" if self.stream_keyed else sorted_
        return f"{how} into {self.buckets} buckets"

    def __str__(self) -> str:
        return joint_plan([self])


def joint_plan(plans: Sequence[RebuildPlan]) -> str:
    """The plan of views that are rebuilt in one pass over the same topics, as text. The time is that of all of them."""
    first, *others = plans
    read = ", ".join(f"{topic} ({count} partitions)" for topic, count in first.topics.items())
    seconds = first.seconds + sum(plan.work for plan in others)
    where = f"{len(first.tasks)} on {first.cores} cores" if first.cores > 1 else f"{len(first.tasks)}, one by one"
    width = max([8, *(len(plan.view) for plan in others and plans)])
    lines = [
        f"rebuild {', '.join(plan.view for plan in plans)} from {read}",
        f"  {'events':<{width}} up to {first.events:,}, to {first.ends}",
    ]
    if others:
        lines += [f"  {'tasks':<{width}} {where}, in one pass"]
        lines += [f"  {plan.view:<{width}} {plan.how}" for plan in plans]
    else:
        lines += [f"  {'tasks':<{width}} {where}, {first.how}"]
    memory = max(plan.memory for plan in plans)
    return "\n".join([*lines, f"  {'expected':<{width}} {seconds:.0f} s, {memory:,} MB"])


def plan_rebuild(
    view: View[Any, Any], log: BulkLog, *, cores: int, buckets: int = BUCKETS, as_of: Position | None = None
) -> RebuildPlan:
    """Plans a rebuild of a view.

    Args:
        buckets: of the new generation; those of a stream-keyed view are its source partitions instead.
        as_of: where to stop, moved back out of a decision; None = the stable end of the log.

    Raises:
        InfrastructureError: the log no longer holds its first records, so a fold of it would be wrong.
    """
    topics = topics_of(view, log.partitions)
    ends = log.stable_ends(topics) if as_of is None else between_decisions(log, as_of.only(topics))
    plan = plan_to(view, topics, ends, cores=cores, buckets=buckets)
    check_complete(log, plan.ranges)
    return plan


def plan_to(
    view: View[Any, Any], topics: dict[str, int], ends: Position, *, cores: int, buckets: int = BUCKETS
) -> RebuildPlan:
    """Plans a fold of the whole log up to some ends."""
    ranges = [OffsetRange(t, p, 0, ends.next_offset(t, p)) for t, count in topics.items() for p in range(count)]
    tasks = _tasks([part for part in ranges if part.end > 0], cores)
    count = next(iter(topics.values())) if view.stream_keyed else buckets
    return RebuildPlan(view.name, view.stream_keyed, topics, ends, tasks, count, cores, view.folded)


def plan_ranges(
    view: View[Any, Any], topics: dict[str, int], ranges: Sequence[OffsetRange], *, cores: int, buckets: int
) -> RebuildPlan:
    """Plans a fold of some ranges of the log."""
    ends = Position.union(Position.at(part.topic, part.partition, part.end) for part in ranges)
    return RebuildPlan(view.name, view.stream_keyed, topics, ends, _tasks(ranges, cores), buckets, cores)


def _tasks(ranges: Sequence[OffsetRange], cores: int) -> tuple[tuple[OffsetRange, ...], ...]:
    """The ranges in a multiple of `cores` tasks, about 8 each, the largest first to the lightest task."""
    count = min(len(ranges), max(1, -(-len(ranges) // (PER_TASK * cores))) * cores)
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    weights = [0] * count
    for part in sorted(ranges, key=lambda p: p.start - p.end):
        lightest = weights.index(min(weights))
        tasks[lightest].append(part)
        weights[lightest] += part.end - part.start
    return tuple(tuple(task) for task in tasks)


_LOOK = 1000
"""How many offsets before a place are searched for the decision that it may cut in two."""


def between_decisions(log: BulkLog, position: Position) -> Position:
    """The position, moved back in each partition to the last boundary of a decision before the stable end."""
    ends = log.stable_ends(position.offsets)
    wanted = {place: min(offset, ends.next_offset(*place)) for place, offset in position.by_partition().items()}
    return Position.of({place: _boundary(log, *place, offset) for place, offset in wanted.items()})


def _boundary(log: BulkLog, topic: str, partition: int, offset: int) -> int:
    last: BulkRecord | None = None
    for records in log.read(OffsetRange(topic, partition, max(0, offset - _LOOK), offset)):
        last = records[-1] if records else last
    if last is None:
        return offset
    k, _, n = (dict(last.headers() or ()).get("ce_decision") or b"1/1").partition(b"/")
    number = None if k == n or number_in(n) is None else number_in(k)
    return offset if number is None else last.offset() - number + 1


def ranges_to(generation: Generation, cuts: Mapping[int, Position]) -> tuple[OffsetRange, ...]:
    """The ranges to read to fold each of these buckets up to its own end offsets."""
    ends = Position.union(cuts.values())
    ranges = (
        OffsetRange(topic, partition, 0, ends.next_offset(topic, partition))
        for topic, count in sorted(generation.topics.items())
        for partition in range(count)
        if not generation.stream_keyed or partition in cuts
    )
    return tuple(part for part in ranges if part.end > 0)


MOST_SORTED = 2_000_000
"""How many events a process sorts at most, since it sorts in memory; Spark spills to disk."""


class EngineChoice(NamedTuple):
    """Whether Spark runs a rebuild, and why."""

    spark: bool
    why: str

    def __str__(self) -> str:
        return f"{'on Spark' if self.spark else 'in this process'}: {self.why}"


def choose_engine(plans: Sequence[RebuildPlan]) -> EngineChoice:
    """Chooses the engine with the shorter forecast; computed views and large sorts run on Spark.

    Args:
        plans: of all views, for as many cores as Spark would have.
    """
    if computed := [plan.view for plan in plans if not plan.folded]:
        return EngineChoice(spark=True, why=f"view {computed[0]} is computed by Spark")
    events = sum(plan.events for plan in plans if not plan.stream_keyed)
    if events > MOST_SORTED:
        why = f"{events:,} events are to be sorted, and this process sorts {MOST_SORTED:,} at most"
        return EngineChoice(spark=True, why=why)
    here = sum(plan.in_process.work for plan in plans)
    there = START_SECONDS + sum(plan.work for plan in plans)
    if here <= there:
        return EngineChoice(spark=False, why=f"{here:.0f} s expected, and {there:.0f} s with Spark")
    return EngineChoice(spark=True, why=f"{there:.0f} s expected, and {here:.0f} s in this process")
