"""Rows that cannot be stored for a moment: a fold of the whole log parks only rows that cannot be stored at its end.

A projector must store them where its flushes fall, so it may park more, until a retry; it never has other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import Event, FoldView, SpreadView, View
from leftfold.engine.log_gaps import beginning
from leftfold.engine.rebuild import sorted_fold as bulk_buckets
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.verify.history import RowRetry
from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.generations import change, open_generation
from leftfold.engine.views.parking import StepwiseFold, check_storable
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.protocols import ViewStore
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import run_tasks
from tests.engine.rebuild.test_bulk_folds import PARTITIONS, TOPIC, Row, add, rebuild_of, rebuilt, usual

NAMES = ("a", "b", "c")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Step(Event, category="counts", key="name"):
    name: str
    by: int


def both(event: Step) -> Iterable[tuple[str, int]]:
    return [(event.name, event.by), ("all", event.by), ("all", 1)]


by_name = FoldView("by_name", events=Step, row=Row, evolve=lambda row, e: add(row, e.by), indexes=("total",))
by_half = FoldView(
    "by_half", events=Step, row=Row, key=lambda e: e.name, evolve=lambda row, e: add(row, e.by), indexes=("total",)
)
spread = SpreadView("spread", events=Step, row=Row, each=both, evolve=add)
views = pytest.mark.parametrize("view", [by_name, by_half, spread], ids=lambda view: view.name)
# Who fails for good fails at another row in another order, so that is left to logs of one partition.
steps = st.tuples(st.just(0), st.sampled_from(NAMES), st.integers(-3, 5) | st.just(13))
elsewhere = st.tuples(st.integers(0, PARTITIONS - 1), st.sampled_from(NAMES), st.integers(-3, 5))
logs = st.lists(steps, max_size=40) | st.lists(elsewhere, max_size=40)


def logged(steps: Iterable[tuple[int, str, int]]) -> MemoryLog:
    log = MemoryLog()
    log.create(TOPIC, PARTITIONS)
    for number, (partition, name, by) in enumerate(steps):
        # A stream is in one partition.
        key = f"{name}{partition}"
        headers = usual(b"counts.Step.v1", b"%d" % (number + 1), b"2026-01-01T00:00:%02dZ" % number)
        log.append(TOPIC, partition, key.encode(), f'{{"name":"{key}","by":{by}}}'.encode(), headers)
    return log


def tailed(view: View[Any, Any], log: MemoryLog, sizes: Sequence[int], store: ViewStore) -> Generation:
    """The view as a projector folds it whose flushes hold so many events, over and over."""
    generation, reader = live_generation(view, store), log.reader()
    writer, decoder = ProjectionWriter(view, generation, store), EventDecoder([view])
    reader.seek(beginning(generation.topics))
    while not reader.position().covers(reader.ends([TOPIC])):
        for size in sizes:
            assert writer.fold(decoder.decode_all(reader.poll(size, 0.0)), reader.position())
    return generation


def streamed(view: View[Any, Any], log: MemoryLog, sizes: Sequence[int], store: ViewStore) -> Generation:
    """The view as Spark streaming folds it, in batches of so many events."""
    generation, reader = live_generation(view, store), log.reader()
    ports: dict[str, Any] = {"open_store": lambda: store, "open_log": lambda: CommittedLog(log.reader())}
    driver = MicroBatchDriver(view, generation, store.checkpoints(generation), "run", **ports)
    begin, number = beginning(generation.topics), 0
    reader.seek(begin)
    while not begin.covers(reader.ends([TOPIC])):
        for size in sizes:
            reader.poll(size, 0.0)
            driver.fold(number, (begin, reader.position()), lambda job: run_tasks(job, log, store), store)
            begin, number = reader.position(), number + 1
    return generation


def live_generation(view: View[Any, Any], store: ViewStore) -> Generation:
    """A live generation with nothing in it."""
    generation = open_generation(store, view, {TOPIC: PARTITIONS}, Phase.SEALED)
    change(store, view.name, lambda registry: registry.pointed(generation))
    return generation


def parked(generation: Generation, store: ViewStore) -> set[str]:
    return {key for checkpoint in store.checkpoints(generation).values() for key in checkpoint.parked}


def rows(generation: Generation, store: ViewStore, without: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for bucket in range(generation.buckets):
        keys = [key for key in store.keys(generation, bucket, "", 999) if key not in set(without)]
        found.update(zip(keys, store.read(generation, [(bucket, key) for key in keys]).rows, strict=True))
    return found


def expected(view: View[Any, Any], log: MemoryLog) -> tuple[dict[str, Any], set[str]]:
    """The rows, and the keys that are parked, by a fold of one event after the other."""
    found: dict[str, Any] = {}
    failed: set[str] = set()
    for record in (record for records in log.of(TOPIC) for record in records):
        event = Step.model_validate_json(record.value or b"")
        for key, item in view.touches(event, event.name):
            try:
                found[key] = found.get(key) if key in failed else view.evolve(found.get(key), item)
            except ValueError:
                failed.add(key)
    there = {key: row for key, row in found.items() if row is not None}
    wrong = {key for key, row in there.items() if not is_storable(view, row)} | failed
    return {key: row for key, row in there.items() if key not in wrong}, wrong


def is_storable(view: View[Any, Any], row: Any) -> bool:
    try:
        check_storable(view, row)
    except Exception:
        return False
    return True


engines = pytest.mark.parametrize("engine", [tailed, streamed], ids=lambda engine: str(engine.__name__))


@settings(max_examples=30, deadline=None)
@given(steps=logs, run=st.integers(1, 5))
@views
def test_a_rebuild_parks_what_cannot_be_stored_in_the_end_and_nothing_else(view: Any, steps: Any, run: int) -> None:
    log = logged(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_buckets, "_RUN", run)
        generation, store = rebuilt(view, log)
    wanted, wrong = expected(view, log)
    assert parked(generation, store) == wrong
    found = rows(generation, store, wrong)
    assert {key: view.rows.decode(fields) for key, fields in found.items()} == wanted


@settings(max_examples=30, deadline=None)
@given(steps=logs, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5))
@views
@engines
def test_wherever_flushes_fall_rows_are_the_same_or_parked(
    engine: Any, view: Any, steps: Any, sizes: Sequence[int]
) -> None:
    log, store = logged(steps), MemoryViewStore()
    generation = engine(view, log, sizes, store)
    (whole, other), mine = rebuilt(view, log), parked(generation, store)
    assert mine >= parked(whole, other)
    assert rows(generation, store, mine) == rows(whole, other, mine)
    assert_verified(view, log, generation, store)


@settings(max_examples=20, deadline=None)
@given(steps=logs, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5))
@views
@engines
def test_retry_frees_exactly_what_can_be_stored_now(engine: Any, view: Any, steps: Any, sizes: Sequence[int]) -> None:
    log, store = logged(steps), MemoryViewStore()
    generation = engine(view, log, sizes, store)
    RowRetry(view, store, lambda: CommittedLog(log.reader())).run(generation)
    whole, other = rebuilt(view, log)
    left = parked(whole, other)
    assert parked(generation, store) == left
    assert rows(generation, store, left) == rows(whole, other, left)
    sums = [
        {b: checkpoint.checksum for b, checkpoint in s.checkpoints(g).items()}
        for g, s in ((generation, store), (whole, other))
    ]
    assert sums[0] == sums[1] or generation.buckets != whole.buckets
    assert_verified(view, log, generation, store)


@settings(max_examples=20, deadline=None)
@given(steps=logs, sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5))
@views
def test_a_rebuild_replaces_a_generation_with_more_parked_rows(view: Any, steps: Any, sizes: Sequence[int]) -> None:
    log, store = logged(steps), MemoryViewStore()
    generation = tailed(view, log, sizes, store)
    before = parked(generation, store)
    result = rebuild_of(view, log, store).run()
    assert result.swapped
    same = set(result.parked) == before
    assert result.agreement is (Agreement.EQUAL if same else Agreement.UNKNOWN)


def test_twin_parking_a_row_for_an_intermediate_value_finds_false_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The projector's one flush is past the trouble of `a0`; a look at every step finds it, and so it did for
    neighbours.
    """
    log, store = logged([(0, "a", 3), (0, "a", 1), (0, "b", 3)]), MemoryViewStore()
    generation = tailed(by_name, log, [9], store)
    assert parked(generation, store) == {"b0"}
    assert_verified(by_name, log, generation, store)
    fail = StepwiseFold._failed_at

    def for_good(self: StepwiseFold, error: Exception, at: Any) -> None:
        self._failed = True
        fail(self, error, at)

    monkeypatch.setattr(StepwiseFold, "_failed_at", for_good)
    fold = BulkJob._fold
    monkeypatch.setattr(BulkJob, "_fold", lambda self, log, part, tell: fold(self, log, part, tell, {"a0", "b0"}))
    result = Verify(by_name, store, open_log=lambda: CommittedLog(log.reader()), open_store=lambda: store).run(
        generation
    )
    assert (result.equal, set(result.newly)) == (False, {"a0"})


def test_a_projector_parks_only_rows_that_it_cannot_store_at_its_flush() -> None:
    log = logged([(0, "a", 3), (0, "a", 1), (0, "b", 3), (0, "b", 7), (0, "c", 1)])
    store = MemoryViewStore()
    generation = tailed(by_name, log, [9], store)
    ((key, why),) = [
        item for checkpoint in store.checkpoints(generation).values() for item in checkpoint.parked.items()
    ]
    assert (key, why.offset, why.waiting) == ("b0", 2, 2), "where its trouble began"
    assert {k: r[b"total"] for k, r in rows(generation, store, ()).items()} == {"a0": b"4", "c0": b"1"}


def sloppy(event: Step) -> Iterable[tuple[str, datetime]]:
    at: Any = {4: NOON.replace(tzinfo=None), 5: NOON.isoformat()}.get(event.by, NOON)
    return [(event.name, at), ("all", NOON)]


def count(row: Row | None, at: datetime) -> Row:
    """A fold that does not look at the item, so that it would not fail on one of another type."""
    return Row((row.total if row else 0) + 1)


@engines
def test_an_item_of_another_type_than_each_declares_parks_its_row_in_every_engine(engine: Any) -> None:
    view = SpreadView("sloppy", events=Step, row=Row, each=sloppy, evolve=count)
    log = logged([(0, "a", 1), (0, "b", 4), (0, "c", 1), (0, "c", 5), (0, "c", 1)])
    store = MemoryViewStore()
    generation = engine(view, log, [2], store)
    whole, other = rebuilt(view, log)
    found = [
        {key: why for checkpoint in s.checkpoints(g).values() for key, why in checkpoint.parked.items()}
        for g, s in ((generation, store), (whole, other))
    ]
    assert found[0] == found[1]
    assert [(key, why.offset, why.waiting) for key, why in sorted(found[0].items())] == [("b0", 1, 1), ("c0", 3, 2)]
    assert "has no time zone; rows and state hold aware times" in found[0]["b0"].error
    assert "is str, and the field holds a valid datetime" in found[0]["c0"].error
    assert rows(generation, store, ()) == rows(whole, other, ())
    assert_verified(view, log, generation, store)


def assert_verified(view: View[Any, Any], log: MemoryLog, generation: Generation, store: ViewStore) -> None:
    verify = Verify(view, store, open_log=lambda: CommittedLog(log.reader()), open_store=lambda: store)
    result = verify.run(generation, deep=True)
    assert (result.equal, result.newly, result.rows) == (True, {}, ())
