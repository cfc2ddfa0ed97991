"""What a rebuild is going to read, in how many tasks, and what that will cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

from leftfold.engine.bulk_log import BulkLog, Range
from leftfold.engine.forecast import (
    BASE_MB,
    EVENTS_PER_ROW,
    FOLD_RATE,
    ITEM_KB,
    PER_TASK,
    ROW_KB,
    SORT_RATE,
    START_SECONDS,
)
from leftfold.engine.generations import BUCKETS, topics_of
from leftfold.engine.hole import check_whole
from leftfold.position import Position
from leftfold.view import View

__all__ = ["RebuildPlan", "plan_ranges", "plan_rebuild", "plan_to", "together"]


@dataclass(frozen=True)
class RebuildPlan:
    """A rebuild before it begins; print it.

    Args:
        ends: the stable ends of the log, where every range stops: no decision is cut in two there.
        tasks: the ranges each task reads, one after another.
        cores: how many tasks run at once. folded: False for a view that is computed from tables.
        here: it runs in this process, without Spark.
    """

    view: str
    stream_keyed: bool
    topics: dict[str, int]
    ends: Position
    tasks: tuple[tuple[Range, ...], ...]
    buckets: int
    cores: int
    folded: bool = True
    here: bool = False

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Everything that is read, by topic and partition."""
        return tuple(sorted(part for task in self.tasks for part in task))

    @property
    def events(self) -> int:
        """How many events are expected: at most so many, since offsets also count the ends of transactions."""
        return sum(part.end - part.start for part in self.ranges)

    @property
    def seconds(self) -> float:
        """The predicted time: of the work, and of Spark's start."""
        return (0.0 if self.here else START_SECONDS) + self.work

    @property
    def work(self) -> float:
        """The predicted seconds of the work: the longest queue of tasks at a measured rate per core.

        The rates, and what limits them on more machines, are in `leftfold.engine.forecast`.
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

        A task holds the rows of one partition beside what every task takes; one that sorts leaves that to Spark,
        which spills to disk, while this process holds all that it sorts.
        """
        largest = max((p.end - p.start for p in self.ranges), default=0) if self.stream_keyed else 0
        task = BASE_MB + largest / EVENTS_PER_ROW * ROW_KB / 1024
        held = self.events * ITEM_KB / 1024 if self.here and not self.stream_keyed else 0
        return round(min(self.cores, len(self.tasks)) * task + held)

    @property
    def how(self) -> str:
        """What is done with the events, for people."""
        sorted_ = "sorted by key, then folded" if self.folded else "computed from tables"
        how = "each partition folded in place" if self.stream_keyed else sorted_
        return f"{how} into {self.buckets} buckets"

    def __str__(self) -> str:
        return together([self])


def together(plans: Sequence[RebuildPlan]) -> str:
    """What is said of views that are rebuilt in one pass over the same topics; the time is that of all of them."""
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


def plan_rebuild(view: View[Any, Any], log: BulkLog, *, cores: int, buckets: int = BUCKETS) -> RebuildPlan:
    """Plans a rebuild of a view up to where the log is stable now.

    Args:
        buckets: of the new generation; those of a stream-keyed view are its source partitions instead.

    Raises:
        InfrastructureError: the first records of the log are gone, so no fold of it would be right.
    """
    topics = topics_of(view, log.partitions)
    plan = plan_to(view, topics, log.stable_ends(topics), cores=cores, buckets=buckets)
    check_whole(log, plan.ranges)
    return plan


def plan_to(
    view: View[Any, Any], topics: dict[str, int], ends: Position, *, cores: int, buckets: int = BUCKETS
) -> RebuildPlan:
    """Plans a fold of the whole log up to some ends."""
    ranges = [Range(t, p, 0, ends.next_offset(t, p)) for t, count in topics.items() for p in range(count)]
    tasks = _tasks([part for part in ranges if part.end > 0], cores)
    count = next(iter(topics.values())) if view.stream_keyed else buckets
    return RebuildPlan(view.name, view.stream_keyed, topics, ends, tasks, count, cores, view.folded)


def plan_ranges(
    view: View[Any, Any], topics: dict[str, int], ranges: Sequence[Range], *, cores: int, buckets: int
) -> RebuildPlan:
    """Plans a fold of some ranges of the log."""
    ends = reduce(or_, (Position.at(part.topic, part.partition, part.end) for part in ranges), Position())
    return RebuildPlan(view.name, view.stream_keyed, topics, ends, _tasks(ranges, cores), buckets, cores)


def _tasks(ranges: Sequence[Range], cores: int) -> tuple[tuple[Range, ...], ...]:
    """The ranges dealt out to a multiple of `cores` tasks, about 8 each, the largest first to the lightest task."""
    count = min(len(ranges), max(1, -(-len(ranges) // (PER_TASK * cores))) * cores)
    tasks: list[list[Range]] = [[] for _ in range(count)]
    weights = [0] * count
    for part in sorted(ranges, key=lambda p: p.start - p.end):
        lightest = weights.index(min(weights))
        tasks[lightest].append(part)
        weights[lightest] += part.end - part.start
    return tuple(tuple(task) for task in tasks)
