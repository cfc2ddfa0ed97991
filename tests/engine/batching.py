"""Micro-batches as Spark runs them, without Spark: the batches of one run, cut by the test, their tasks run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask
from leftfold.memory import MemoryLog
from leftfold.model.position import Position
from leftfold.ports.bulk import CommittedLog
from leftfold.ports.protocols import ViewStore
from tests.engine.folding import TOPIC, FoldBench


@dataclass
class Batches:
    """The batches of one run of a view, cut by the test; the tasks run here."""

    bench: FoldBench
    view: Any
    run: str = "run"

    def __post_init__(self) -> None:
        self.bench.settle(self.bench.tail())
        generation = self.bench.live(self.view)
        self.course = MicroBatchDriver(
            self.view, generation, self.bench.store.checkpoints(generation), self.run,
            open_store=lambda: self.bench.store, open_log=lambda: CommittedLog(self.bench.log.reader()),
        )  # fmt: skip
        self.number, self.begin = 0, self.course.position()

    def fold(self, end: Position | None = None) -> None:
        """One batch up to a position, or up to the end."""
        end = end if end is not None else self.bench.log.reader().ends([TOPIC])
        self.course.fold(self.number, (self.begin, end), self.tasks, self.bench.store)
        self.number, self.begin = self.number + 1, end

    def tasks(self, job: MicroBatchTask) -> Sequence[BatchResult]:
        """The tasks of a batch."""
        return run_tasks(job, self.bench.log, self.bench.store)


def run_tasks(job: MicroBatchTask, log: MemoryLog, store: ViewStore) -> list[BatchResult]:
    """What Spark does: a task per source partition that has anything new, and one per bucket that is touched."""
    parts = [log.of(source.topic)[source.partition][source.start : source.end] for source in job.sources]
    if job.generation.stream_keyed:
        results = list(job.fold_partitions(chain.from_iterable(parts), store))
    else:
        items = sorted(item for part in parts for item in job.read_items(part))
        results = list(job.fold_buckets(items, store))
    return [BatchResult.from_json(result.to_json()) for result in results]
