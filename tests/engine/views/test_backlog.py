"""A projector with a backlog: many batches are folded into one flush, and what is folded but not sent is never lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.live_fold import LiveFold
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.subscription import FLUSH_EVENTS, SharedSubscription
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Generation
from tests.domains.shop import checkouts, household_spend, open_baskets
from tests.engine.folding import PARTITIONS, TOPIC, FoldBench, out

EVENTS = 120


class Flushes:
    """The flushes of a bench from now on, as how many rows each holds."""

    def __init__(self, bench: FoldBench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        begin = bench.store.begin_flush

        def begin_flush(flushes: Sequence[BucketFlush]) -> Any:
            self.rows.append(sum(len(flush.changes) for flush in flushes))
            return begin(flushes)

        monkeypatch.setattr(bench.store, "begin_flush", begin_flush)


def backlog(bench: FoldBench, first: int = 0) -> None:
    for number in range(first, first + EVENTS):
        bench.write(out(f"b{number}", f"h{number % 7}", p=1))


def totals(bench: FoldBench) -> dict[str, int]:
    return {household: int(row.total) for household, row in bench.rows(household_spend).items()}


def expected(events: int) -> dict[str, int]:
    return {f"h{n}": len(range(n, events, 7)) for n in range(7)}


def test_a_backlog_is_folded_into_one_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FoldBench(household_spend)
    tail = bench.settle(bench.tail(batch=10, growth=64))
    flushes = Flushes(bench, monkeypatch)
    backlog(bench)
    bench.settle(tail)
    assert flushes.rows == [7]
    assert totals(bench) == expected(EVENTS)


def test_a_flush_holds_no_more_batches_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with one batch a flush, the same seven rows are written again and again."""
    bench = FoldBench(household_spend)
    tail = bench.settle(bench.tail(batch=10, growth=1))
    flushes = Flushes(bench, monkeypatch)
    backlog(bench)
    bench.settle(tail)
    assert len(flushes.rows) == EVENTS // 10
    assert sum(flushes.rows) > 7 * 5
    assert totals(bench) == expected(EVENTS)


def test_a_store_that_fails_between_two_batches_of_one_flush_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = FoldBench(household_spend)
    backlog(bench)
    bench.settle()
    backlog(bench, EVENTS)
    tail = bench.tail(batch=2, growth=64)
    read, asked = bench.store.read_all, 0

    def read_all(wanted: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise InfrastructureError("the store is away")
        return read(wanted)

    monkeypatch.setattr(bench.store, "read_all", read_all)
    with pytest.raises(InfrastructureError, match="is away"):
        bench.settle(tail)
    bench.settle(tail)
    assert totals(bench) == expected(2 * EVENTS)


def test_without_forgetting_what_was_not_sent_it_would_be_folded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(ProjectionWriter, "rewind", lambda self: setattr(self._fold, "is_ahead", True))
    with pytest.raises(AssertionError):
        test_a_store_that_fails_between_two_batches_of_one_flush_loses_and_repeats_nothing(monkeypatch)


@pytest.mark.parametrize("view", [household_spend, checkouts], ids=lambda view: view.name)
def test_what_has_landed_is_passed_over_when_it_is_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    writer, decode = ProjectionWriter(view, bench.live(view), bench.store), EventDecoder([view]).decode_all
    for first in (0, 10):
        records = decode(record for n in range(first, first + 10) for record in bench.write(out(f"b{n}", "h", p=1)))
        reached = bench.log.reader().ends([TOPIC])
        assert writer.fold(records, reached)
        once = bench.rows(view)
        writer.rewind()
        assert writer.fold(records, reached)
        assert bench.rows(view) == once


def test_without_passing_it_over_it_would_be_folded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a projection writer that knows only the checkpoints it began with."""
    monkeypatch.setattr(LiveFold, "skip", _once(LiveFold.skip))
    for view in (household_spend, checkouts):
        with pytest.raises(AssertionError):
            test_what_has_landed_is_passed_over_when_it_is_read_again(view)


def _once(pass_over: Any) -> Any:
    def first_only(self: LiveFold, checkpoints: Any) -> None:
        if not hasattr(self, "_done"):
            pass_over(self, checkpoints)
        self.is_ahead = True

    return first_only


@pytest.mark.parametrize("view", [household_spend, open_baskets], ids=lambda view: view.name)
def test_rows_that_are_forgotten_to_save_memory_are_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    writer, decode = ProjectionWriter(view, bench.live(view), bench.store, most=2), EventDecoder([view]).decode
    wanted = FoldBench(view)
    for number in range(60):
        record = bench.write(out(f"b{number % 5}", f"h{number % 7}", p=number))[0]
        wanted.write(out(f"b{number % 5}", f"h{number % 7}", p=number))
        reached = writer.position() | Position.at(TOPIC, record.partition, record.offset + 1)
        assert writer.fold([decode(record)], reached)
        assert len(writer._fold.rows) <= 2
    wanted.settle()
    assert bench.rows(view) == wanted.rows(view)
    assert writer.checksum() == ProjectionWriter(view, wanted.live(view), wanted.store).checksum()


def test_without_reading_them_again_forgotten_rows_would_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: as if every bucket were empty."""
    evict = LiveFold.evict

    def forget(self: LiveFold, most: int) -> None:
        evict(self, most)
        for bucket in self.buckets.values():
            bucket.is_whole = True

    monkeypatch.setattr(LiveFold, "evict", forget)
    with pytest.raises(AssertionError):
        test_rows_that_are_forgotten_to_save_memory_are_read_again(household_spend)


def test_rows_that_wait_for_their_flush_are_never_forgotten() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    writer = ProjectionWriter(household_spend, bench.live(household_spend), bench.store, most=1)
    decode, ends = EventDecoder([household_spend]).decode, dict.fromkeys(range(PARTITIONS), 0)
    sent, flying, kept = ["h1", "h2", "h3"], ["h2", "h3", "h4"], ["h2", "h3", "h4", "h2"]
    for step, households in enumerate((sent, flying, kept)):
        for number, household in enumerate(households):
            record = bench.write(out(f"b{step}{number}", household, p=1))[0]
            ends[record.partition] = record.offset + 1
            assert not writer.look([decode(record)]), "this row is still in memory"
        if step == 0:
            writer.begin(Position({TOPIC: dict(ends)}))
        if step == 1:
            assert writer.landed()
    writer.begin(Position({TOPIC: dict(ends)}))
    assert writer.landed()
    assert totals(bench) == {"h1": 1, "h2": 4, "h3": 3, "h4": 2}


def test_a_decision_with_more_events_than_a_part_is_folded_at_once() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    group = SharedSubscription(
        bench.log.reader, [ProjectionWriter(household_spend, bench.live(household_spend), bench.store)], bench.store
    )
    many = 3 * FLUSH_EVENTS
    bench.write(*[out("b", "h", p=1)] * many)
    assert group.step(2000, 0.0)[0] == many


def test_a_burst_is_sent_in_parts_that_grow_until_nothing_waits() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    group = SharedSubscription(
        bench.log.reader, [ProjectionWriter(household_spend, bench.live(household_spend), bench.store)], bench.store
    )
    for number in range(10 * FLUSH_EVENTS):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    parts = []
    while count := group.step(2000, 0.0)[0]:
        parts.append(count)
    assert parts == [FLUSH_EVENTS, 2 * FLUSH_EVENTS, 4 * FLUSH_EVENTS, 3 * FLUSH_EVENTS]
    bench.write(out("later", "h", p=1))
    assert group.step(2000, 0.0)[0] == 1


def test_rows_of_a_bucket_that_was_empty_are_never_read_until_one_is_forgotten() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    writer = ProjectionWriter(household_spend, bench.live(household_spend), bench.store, most=3)
    read, ends = [], dict.fromkeys(range(PARTITIONS), 0)
    for number, name in enumerate(["h1", "h2", "h3", "h4", "h5"]):
        record = bench.write(out(f"b{number}", name, p=1))[0]
        missing = writer.look([EventDecoder([household_spend]).decode(record)])
        read.append(len(missing))
        writer.enter(bench.store.read(writer.generation, missing))
        ends[record.partition] = record.offset + 1
        writer.begin(writer.position() | Position({TOPIC: dict(ends)}))
        assert writer.landed()
    assert read[:4] == [0, 0, 0, 0]
    assert writer.checkpoints.keys() == set(range(writer.generation.buckets))
