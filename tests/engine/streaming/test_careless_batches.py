"""Twins of micro-batches, each without one thing that the real ones have: what becomes of the rows then.

tests/spark runs `Forgetful` in executors that are killed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import pytest

from leftfold.engine.streaming.microbatch import OutOfStep
from leftfold.engine.streaming.microbatch_task import BatchResult, MicroBatchTask, MicroBatchWriter
from leftfold.engine.views.folded_rows import RowAddress
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Snapshot
from leftfold.ports.protocols import ViewStore
from leftfold.testing import fold
from tests.domains.shop import household_spend
from tests.engine.fold_bench import PARTITIONS, TOPIC, VIEWS, Batches, FoldBench
from tests.engine.streaming.test_microbatch import DECISIONS, HISTORY, interior

__all__ = ["Forgetful"]


class Trusting(MicroBatchTask):
    """Takes every checkpoint for the one that it knows."""

    def in_step(self, bucket: int, checkpoint: Checkpoint) -> bool:
        return True


class Forgetful(MicroBatchTask):
    """Folds whatever a batch holds, as if a checkpoint were right about that."""

    def is_done(self, checkpoint: Checkpoint, reached: Position) -> bool:
        return False

    def writer(self, store: ViewStore, places: Sequence[RowAddress], read: Snapshot, bucket: int) -> MicroBatchWriter:
        checkpoints = {
            number: replace(checkpoint, position=Position()) for number, checkpoint in read.checkpoints.items()
        }
        return super().writer(store, places, replace(read, checkpoints=checkpoints), bucket)


class Cutting(MicroBatchTask):
    """Folds as far as a batch goes, in the middle of a decision or not."""

    def whole(self, ends: Sequence[bool]) -> int:
        return len(ends)


@dataclass
class Kind(Batches):
    """Batches whose tasks are of some kind."""

    kind: type[MicroBatchTask] = MicroBatchTask

    def tasks(self, job: MicroBatchTask) -> Sequence[BatchResult]:
        return super().tasks(self.kind(**{field.name: getattr(job, field.name) for field in fields(job)}))


def kinds(twin: type[MicroBatchTask]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [MicroBatchTask, twin], ids=["", "twin"])


@kinds(Cutting)
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_batches_that_are_folded_as_they_come_cut_decisions(view: Any, kind: type[MicroBatchTask]) -> None:
    bench = FoldBench(view)
    batches = Kind(bench, view, kind=kind)
    for first, *two in DECISIONS:
        bench.write(first)
        bench.write(*two)
    ends, cuts = bench.log.reader().ends([TOPIC]), 0
    for offset in range(1, 9):
        at = {partition: min(offset, ends.next_offset(TOPIC, partition)) for partition in range(PARTITIONS)}
        batches.fold(Position({TOPIC: at}))
        cuts += interior(bench, batches.driver.checkpoints)
    assert (cuts > 0) is (kind is Cutting)
    assert bench.rows(view) == dict(fold(view, *chain.from_iterable(DECISIONS)))


@kinds(Forgetful)
def test_a_batch_that_is_run_again_counts_events_twice_where_checkpoints_are_not_asked(
    kind: type[MicroBatchTask],
) -> None:
    bench = FoldBench(household_spend)
    batches = Kind(bench, household_spend, kind=kind)
    bench.write(HISTORY[1])
    job = batches.driver._planned(0, (batches.begin, bench.log.reader().ends([TOPIC])))
    batches.tasks(job)
    assert bench.rows(household_spend) == dict(fold(household_spend, HISTORY[1]))
    batches.tasks(job)
    assert (bench.rows(household_spend) == dict(fold(household_spend, HISTORY[1]))) is (kind is MicroBatchTask)


@kinds(Trusting)
def test_events_are_lost_behind_a_store_that_went_back_where_tokens_are_not_asked(kind: type[MicroBatchTask]) -> None:
    bench, events = FoldBench(household_spend), HISTORY[1::3]
    batches = Kind(bench, household_spend, kind=kind)
    for event in events[:3]:
        before = deepcopy(bench.store._buckets)
        bench.write(event)
        batches.fold()
    bench.store._buckets.update({place: bucket for place, bucket in before.items() if bucket.rows})
    bench.write(events[3])
    if kind is MicroBatchTask:
        with pytest.raises(OutOfStep, match=r"was written by run\.1"):
            batches.fold()
    else:
        batches.fold()
        assert bench.rows(household_spend) == dict(fold(household_spend, *events[:2], events[3]))
