"""Micro-batches over memory: what a task does with checkpoints, retries and halves of decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.client import Views
from leftfold.engine.streaming.microbatch import OutOfStep
from leftfold.engine.streaming.microbatch_task import BatchResult
from leftfold.errors import ContractError
from leftfold.memory import MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Parked, Phase, Snapshot
from leftfold.testing import fold
from tests.domains.shop import checkouts, household_spend, open_baskets, product_sales
from tests.engine.fold_bench import PARTITIONS, TOPIC, VIEWS, Batches, FoldBench, out


def moved(event: Any, other: Any) -> Any:
    """The event in the other's stream, so that one decision may hold both."""
    return event.model_copy(update={"basket_id": other.basket_id})


HISTORY = [out(f"b-{n}", f"h-{n % 3}", apple=n, pear=2 * n) for n in range(12)]
DECISIONS = [(a, moved(b, a), moved(c, a)) for a, b, c in zip(HISTORY[::3], HISTORY[1::3], HISTORY[2::3], strict=True)]
"""In each the first event is a decision of its own, the other two are one."""


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@given(cuts=st.lists(st.lists(st.integers(0, 8), min_size=PARTITIONS, max_size=PARTITIONS), max_size=6))
def test_wherever_batches_are_cut_rows_are_those_of_the_fold(view: Any, cuts: list[list[int]]) -> None:
    bench = FoldBench(view)
    batches = Batches(bench, view)
    for first, *two in DECISIONS:
        bench.write(first)
        bench.write(*two)
    ends = bench.log.reader().ends([TOPIC])
    for cut in cuts:
        at = {p: batches.begin.next_offset(TOPIC, p) + count for p, count in enumerate(cut)}
        batches.fold(Position({TOPIC: {p: min(offset, ends.next_offset(TOPIC, p)) for p, offset in at.items()}}))
        assert interior(bench, batches.driver.checkpoints) == 0
    batches.fold()
    assert bench.rows(view) == dict(fold(view, *chain.from_iterable(DECISIONS)))
    assert all(
        checkpoint.position.covers(ends_of_bucket(batches, bucket, ends))
        for bucket, checkpoint in batches.driver.checkpoints.items()
    )


def ends_of_bucket(batches: Batches, bucket: int, ends: Position) -> Position:
    generation = batches.driver.generation
    return ends.only(generation.topics, bucket if generation.stream_keyed else None)


def interior(bench: FoldBench, checkpoints: dict[int, Checkpoint]) -> int:
    """How many checkpoints stand within a decision."""
    found = 0
    for checkpoint in checkpoints.values():
        for partition, offset in checkpoint.position.offsets.get(TOPIC, {}).items():
            if offset > 0:
                k, n = dict(bench.log.of(TOPIC)[partition][offset - 1].headers)["ce_decision"].split(b"/")
                found += k != n
    return found


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_task_that_is_run_again_finds_its_own_token_and_changes_nothing(view: Any) -> None:
    bench = FoldBench(view)
    batches = Batches(bench, view)
    bench.write(*HISTORY[:1])
    job = batches.driver._planned(0, (batches.begin, bench.log.reader().ends([TOPIC])))
    once = batches.tasks(job)
    rows, checkpoints = bench.rows(view), bench.store.checkpoints(bench.live(view))
    assert rows == dict(fold(view, HISTORY[0]))
    assert batches.tasks(job) == once
    batches.fold()
    assert bench.rows(view) == rows
    for bucket, checkpoint in bench.store.checkpoints(bench.live(view)).items():
        assert checkpoint == checkpoints[bucket] or checkpoint.position != checkpoints[bucket].position


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_another_writers_token_ends_the_run(view: Any) -> None:
    bench = FoldBench(view)
    other, one = Batches(bench, view, "other"), Batches(bench, view, "one")
    bench.write(*HISTORY[:1])
    one.fold()
    with pytest.raises(OutOfStep, match="was written by one.0|by another process"):
        other.fold()
    assert bench.rows(view) == dict(fold(view, HISTORY[0]))


class Overtaken(MemoryViewStore):
    """A store on which, once, something happens behind a read; the twin's does not compare tokens."""

    happen: Callable[[], object] | None = None
    is_blind = False

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        found = super().read(generation, keys)
        happen, self.happen = self.happen, None
        if happen:
            happen()
        return found

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        if self.is_blind:
            flushes = [replace(f, expected=self.checkpoints(f.generation)[f.bucket].token) for f in flushes]
        return super().flush(flushes)


@pytest.mark.parametrize("is_blind", [False, True], ids=["", "twin"])
@pytest.mark.parametrize("view", [checkouts, household_spend, product_sales], ids=lambda view: view.name)
def test_a_batch_that_a_projector_overtook_writes_nothing(view: Any, is_blind: bool) -> None:
    """The twin compares no tokens: events count twice."""
    bench, store = FoldBench(view), Overtaken()
    bench.store, bench.views = store, Views(store)
    batches = Batches(bench, view)
    then = [out(f"b-{number}", f"h-{number}", **{f"pear-{number}": 2}) for number in range(40)]
    bench.write(HISTORY[0])

    def overtake() -> None:
        for event in then:
            bench.write(event)
        bench.settle()

    store.happen, store.is_blind = overtake, is_blind
    with suppress(OutOfStep) if is_blind else pytest.raises(OutOfStep, match="written meanwhile"):
        batches.fold()
    bench.settle()
    assert (bench.rows(view) == dict(fold(view, HISTORY[0], *then))) is not is_blind


def test_an_older_checkpoint_of_the_same_run_ends_the_run() -> None:
    bench = FoldBench(open_baskets)
    batches = Batches(bench, open_baskets)
    bench.write(HISTORY[0])
    batches.fold()
    bench.write(moved(HISTORY[1], HISTORY[0]))
    batches.fold()
    bench.change_marks(open_baskets, lambda checkpoint: replace(checkpoint, position=Position()))
    for bucket, flushed in bench.store.checkpoints(bench.live(open_baskets)).items():
        bench.store._buckets[open_baskets.name, bench.live(open_baskets).id, bucket].checkpoint = replace(
            flushed, token="run.0"
        )
    bench.write(moved(HISTORY[2], HISTORY[0]))
    with pytest.raises(OutOfStep, match=r"was written by run\.0"):
        batches.fold()


def test_an_event_of_an_unknown_row_stops_the_view() -> None:
    bench = FoldBench(household_spend)
    batches = Batches(bench, household_spend)
    bench.write(HISTORY[0], ce_type=b"baskets.CheckedOut.v9")
    with pytest.raises(ContractError, match=r"stops at baskets\.events"):
        batches.fold()


def test_too_many_parked_keys_stop_the_view() -> None:
    bench = FoldBench(open_baskets)
    batches = Batches(bench, open_baskets)
    for event in HISTORY:
        bench.write(event, ce_type=b"baskets.CheckedOut.v9")
    job = batches.driver._planned(0, (batches.begin, bench.log.reader().ends([TOPIC])))
    (stopped, *_) = [result for result in batches.tasks(replace(job, max_parked=1)) if result.stopped]
    assert "more than" in stopped.stopped
    batches.fold()
    assert sum(len(checkpoint.parked) for checkpoint in batches.driver.checkpoints.values()) == len(HISTORY)


def test_a_result_survives_its_way_to_the_driver() -> None:
    checkpoint = Checkpoint(
        Position.at("t", 1, 5), 2**127 + 1, "r.1", Phase.LIVE, 3, {"k": Parked("t", 1, 4, "why", 2)}, "2026"
    )
    for result in (BatchResult(3, checkpoint, Position.at("t", 0, 9), "trouble", "stopped"), BatchResult(0)):
        assert BatchResult.from_json(result.to_json()) == result
