"""A tail with a backlog: many batches are folded into one flush, and what is folded but not sent is never lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.bulk_evolve import Unstorable
from leftfold.engine.decoded import EventDecoder
from leftfold.engine.follower import Follower
from leftfold.engine.generations import open_generation
from leftfold.engine.row_fold import RowFold
from leftfold.errors import InfrastructureError
from leftfold.flush import BucketFlush, Generation, Phase, covered
from leftfold.position import Position
from tests.core.folding import PARTITIONS, TOPIC, FoldBench, out
from tests.core.shop import CheckedOut, checkouts, household_spend, open_baskets

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
    monkeypatch.setattr(Follower, "rewind", lambda self: setattr(self._fold, "is_ahead", True))
    with pytest.raises(AssertionError):
        test_a_store_that_fails_between_two_batches_of_one_flush_loses_and_repeats_nothing(monkeypatch)


@pytest.mark.parametrize("view", [household_spend, checkouts], ids=lambda view: view.name)
def test_what_has_landed_is_passed_over_when_it_is_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    follower, decode = Follower(view, bench.live(view), bench.store), EventDecoder([view]).decode_all
    for first in (0, 10):
        records = decode(record for n in range(first, first + 10) for record in bench.write(out(f"b{n}", "h", p=1)))
        reached = bench.log.reader().ends([TOPIC])
        assert follower.fold(records, reached)
        once = bench.rows(view)
        follower.rewind()
        assert follower.fold(records, reached)
        assert bench.rows(view) == once


def test_without_passing_it_over_it_would_be_folded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a follower that knows only the marks it began with."""
    monkeypatch.setattr(RowFold, "pass_over", _once(RowFold.pass_over))
    for view in (household_spend, checkouts):
        with pytest.raises(AssertionError):
            test_what_has_landed_is_passed_over_when_it_is_read_again(view)


def _once(pass_over: Any) -> Any:
    def first_only(self: RowFold, marks: Any) -> None:
        if not hasattr(self, "_done"):
            pass_over(self, marks)
        self.is_ahead = True

    return first_only


@pytest.mark.parametrize("view", [household_spend, open_baskets], ids=lambda view: view.name)
def test_rows_that_are_forgotten_to_save_memory_are_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    follower, decode = Follower(view, bench.live(view), bench.store, most=2), EventDecoder([view]).decode
    wanted = FoldBench(view)
    for number in range(60):
        record = bench.write(out(f"b{number % 5}", f"h{number % 7}", p=number))[0]
        wanted.write(out(f"b{number % 5}", f"h{number % 7}", p=number))
        reached = follower.position() | Position.at(TOPIC, record.partition, record.offset + 1)
        assert follower.fold([decode(record)], reached)
        assert len(follower._fold.rows) <= 2
    wanted.settle()
    assert bench.rows(view) == wanted.rows(view)
    assert follower.checksum() == Follower(view, wanted.live(view), wanted.store).checksum()


def test_without_reading_them_again_forgotten_rows_would_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: as if every bucket were empty."""
    evict = RowFold.evict

    def forget(self: RowFold, most: int) -> None:
        evict(self, most)
        for bucket in self.buckets.values():
            bucket.is_empty = True

    monkeypatch.setattr(RowFold, "evict", forget)
    with pytest.raises(AssertionError):
        test_rows_that_are_forgotten_to_save_memory_are_read_again(household_spend)


def test_rows_that_wait_for_their_flush_are_never_forgotten() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    follower = Follower(household_spend, bench.live(household_spend), bench.store, most=1)
    decode, ends = EventDecoder([household_spend]).decode, dict.fromkeys(range(PARTITIONS), 0)
    sent, flying, kept = ["h1", "h2", "h3"], ["h2", "h3", "h4"], ["h2", "h3", "h4", "h2"]
    for step, households in enumerate((sent, flying, kept)):
        for number, household in enumerate(households):
            record = bench.write(out(f"b{step}{number}", household, p=1))[0]
            ends[record.partition] = record.offset + 1
            assert not follower.look([decode(record)]), "this row is still in memory"
        if step == 0:
            follower.begin(Position({TOPIC: dict(ends)}))
        if step == 1:
            assert follower.landed()
    follower.begin(Position({TOPIC: dict(ends)}))
    assert follower.landed()
    assert totals(bench) == {"h1": 1, "h2": 4, "h3": 3, "h4": 2}


class Failing:
    """A flush whose outcome nobody can ask for."""

    def landed(self) -> bool:
        raise InfrastructureError("the store is away")


@pytest.mark.parametrize("when", ["before it is sent", "after it is sent"])
@pytest.mark.parametrize("view", [household_spend, checkouts], ids=lambda view: view.name)
def test_a_flush_that_fails_loses_and_repeats_nothing(view: Any, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, failed = FoldBench(view), False
    tail, begin = bench.settle(), bench.store.begin_flush

    def begin_flush(flushes: Sequence[BucketFlush]) -> Any:
        nonlocal failed
        if failed or not any(flush.changes for flush in flushes):
            return begin(flushes)
        failed = True
        if when == "before it is sent":
            raise InfrastructureError("the store is away")
        begin(flushes)
        return Failing()

    bench.write(out("b", "h", p=1))
    bench.settle(tail)
    monkeypatch.setattr(bench.store, "begin_flush", begin_flush)
    bench.write(out("b", "h", p=2))
    with pytest.raises(InfrastructureError, match="is away"):
        bench.settle(tail)
    bench.settle(tail)
    wanted = FoldBench(view)
    for price in (1, 2):
        wanted.write(out("b", "h", p=price))
    wanted.settle()
    assert bench.rows(view) == wanted.rows(view)
    assert bench.views[view].describe().checksum == wanted.views[view].describe().checksum


def test_a_read_that_fails_while_a_flush_is_on_its_way_leaves_nobody_out_of_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = FoldBench(household_spend)
    backlog(bench)
    bench.settle()
    tail = bench.settle(bench.tail())
    bench.write(out("z", "h1", p=1))
    assert tail.step(0.0)
    bench.write(out("z2", "h2", p=1))
    monkeypatch.setattr(bench.store, "read_all", _away)
    with pytest.raises(InfrastructureError, match="is away"):
        tail.step(0.0)
    monkeypatch.undo()
    bench.reports.clear()
    bench.settle(tail)
    assert bench.reports == []
    assert sum(totals(bench).values()) == EVENTS + 2


def _away(asked: Any) -> Any:
    raise InfrastructureError("the store is away")


@dataclass(frozen=True)
class Strange:
    total: Decimal


def strange(row: Strange | None, event: CheckedOut) -> Strange | None:
    if event.household == "repeated" and row == Strange(event.total):
        raise ValueError("this has happened already")
    return Strange(Decimal("NaN") if event.household == "unstorable" else event.total)


stranger = FoldView("stranger", events=CheckedOut, row=Strange, evolve=strange, indexes=("total",))


def test_the_live_generation_waits_for_the_next_one_that_must_fold_with_care() -> None:
    bench = FoldBench(stranger)
    bench.write(out("b", "h", p=1))
    tail = bench.settle()
    old = bench.live(stranger)
    new = open_generation(bench.store, stranger, old.topics, Phase.SEALED)
    bench.settle(tail)
    for number in range(3):
        bench.write(out(f"b{number}", "unstorable", p=1))
        for _ in range(4):
            tail.step(0.0)
            there, next_ = (covered(one, bench.store.marks(one)) for one in (old, new))
            assert next_.covers(there)
    bench.settle(tail)
    assert {key for mark in bench.store.marks(new).values() for key in mark.parked} == {"b0", "b1", "b2"}


def test_care_ends_where_the_trouble_was_whatever_else_the_group_reads() -> None:
    bench = FoldBench(stranger)
    bench.settle()
    follower, decode = Follower(stranger, bench.live(stranger), bench.store), EventDecoder([stranger]).decode_all
    records = decode(bench.write(out("a", "unstorable", p=1)))
    reached = bench.log.reader().ends([TOPIC])
    follower.look(records)
    with pytest.raises(Unstorable):
        follower.begin(reached | Position.at("other.events", 0, 7))
    follower.rewind()
    assert follower._fold.step is not strange
    assert follower.fold(records, reached)
    assert follower._fold.step is strange


def test_a_tail_that_was_overtaken_is_out_of_step_and_does_not_stop_its_view() -> None:
    """Its rows hold the events already, and a strict fold raises; that is no reason to stop."""
    bench = FoldBench(stranger)
    bench.settle()
    for number in range(150):
        bench.write(out(f"b{number}", "h", p=1))
    bench.settle()
    mine, other = (Follower(stranger, bench.live(stranger), bench.store) for _ in range(2))
    decode = EventDecoder([stranger]).decode_all
    records = decode(record for n in range(150) for record in bench.write(out(f"b{n}", "repeated", p=2)))
    reached = bench.log.reader().ends([TOPIC])
    missing = mine.look(records)
    assert other.fold(records, reached)
    mine.enter(bench.store.read(mine.generation, missing))
    mine.begin(reached)
    assert not mine.landed()
    assert not mine.stopped
