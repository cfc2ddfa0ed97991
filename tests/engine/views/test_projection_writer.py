"""A writer of one generation: what is folded, flushed, refused and read again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView, View, ViewNotBuilt
from leftfold.engine.views import shared_subscription
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.live_fold import LiveFold
from leftfold.engine.views.parking import RowEncodingError
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.shared_subscription import FLUSH_EVENTS, SharedSubscription
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Phase, checksum_of, covered
from tests.domains.shop import CheckedOut, Spend, checkouts, household_spend, open_baskets
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench, out

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


def writer_of(bench: FoldBench, view: View[Any, Any] = household_spend, **options: Any) -> ProjectionWriter:
    return ProjectionWriter(view, bench.live(view), bench.store, **options)


@pytest.fixture
def bench() -> FoldBench:
    """A view whose generation is live and empty."""
    bench = FoldBench(household_spend)
    bench.settle()
    return bench


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("growth", "flushes"), [(64, 1), (1, EVENTS // 10)], ids=["", "twin"])
def test_a_backlog_is_folded_into_one_flush(growth: int, flushes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with one batch a flush, the same seven rows are written again and again."""
    bench = FoldBench(household_spend)
    projector = bench.settle(bench.projector(batch=10, growth=growth))
    flushed = Flushes(bench, monkeypatch).rows
    backlog(bench)
    bench.settle(projector)
    assert len(flushed) == flushes
    assert (sum(flushed) == 7) is (growth == 64)
    assert totals(bench) == expected(EVENTS)


@pytest.mark.parametrize("view", [household_spend, checkouts], ids=lambda view: view.name)
def test_events_below_the_checkpoints_are_skipped_when_they_are_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    writer, decode = writer_of(bench, view), EventDecoder([view]).decode_all
    for first in (0, 10):
        records = decode(record for n in range(first, first + 10) for record in bench.write(out(f"b{n}", "h", p=1)))
        reached = bench.log.reader().ends([TOPIC])
        assert writer.fold(records, reached)
        once = bench.rows(view)
        writer.rewind()
        assert writer.fold(records, reached)
        assert bench.rows(view) == once


def test_twin_without_skipping_them_they_are_folded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a projection writer that knows only the checkpoints it began with."""
    monkeypatch.setattr(LiveFold, "skip", _once(LiveFold.skip))
    for view in (household_spend, checkouts):
        with pytest.raises(AssertionError):
            test_events_below_the_checkpoints_are_skipped_when_they_are_read_again(view)


def _once(pass_over: Any) -> Any:
    def first_only(self: LiveFold, checkpoints: Any) -> None:
        if not hasattr(self, "_done"):
            pass_over(self, checkpoints)
        self.is_ahead = True

    return first_only


@pytest.mark.parametrize("view", [household_spend, open_baskets], ids=lambda view: view.name)
def test_evicted_rows_are_read_again(view: Any) -> None:
    bench = FoldBench(view)
    bench.settle()
    writer, decode = writer_of(bench, view, most=2), EventDecoder([view]).decode
    wanted = FoldBench(view)
    for number in range(60):
        record = bench.write(out(f"b{number % 5}", f"h{number % 7}", p=number))[0]
        wanted.write(out(f"b{number % 5}", f"h{number % 7}", p=number))
        reached = writer.position() | Position.at(TOPIC, record.partition, record.offset + 1)
        assert writer.fold([decode(record)], reached)
        assert len(writer._fold.rows) <= 2
    wanted.settle()
    assert bench.rows(view) == wanted.rows(view)
    expected = ProjectionWriter(view, wanted.live(view), wanted.store).checkpoints
    assert checksum_of(writer.checkpoints.values()) == checksum_of(expected.values())


def test_twin_without_reading_evicted_rows_they_begin_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: as if every bucket were empty."""
    evict = LiveFold.evict

    def forget(self: LiveFold, most: int) -> None:
        evict(self, most)
        for bucket in self.buckets.values():
            bucket.is_whole = True

    monkeypatch.setattr(LiveFold, "evict", forget)
    with pytest.raises(AssertionError):
        test_evicted_rows_are_read_again(household_spend)


def test_rows_that_wait_for_their_flush_are_never_evicted(bench: FoldBench) -> None:
    writer = writer_of(bench, most=1)
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


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends by its number of events alone, however long the machine stands still within it."""
    monkeypatch.setattr(shared_subscription, "FLUSH_SECONDS", math.inf)


@pytest.mark.usefixtures("unhurried")
def test_a_decision_with_more_events_than_a_part_is_folded_at_once(bench: FoldBench) -> None:
    group = SharedSubscription(bench.log.reader, [writer_of(bench)], bench.store)
    many = 3 * FLUSH_EVENTS
    bench.write(*[out("b", "h", p=1)] * many)
    assert group.step(2000, 0.0)[0] == many


@pytest.mark.usefixtures("unhurried")
def test_a_burst_is_sent_in_parts_that_grow_until_nothing_waits(bench: FoldBench) -> None:
    group = SharedSubscription(bench.log.reader, [writer_of(bench)], bench.store)
    for number in range(10 * FLUSH_EVENTS):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    parts = []
    while count := group.step(2000, 0.0)[0]:
        parts.append(count)
    assert parts == [FLUSH_EVENTS, 2 * FLUSH_EVENTS, 4 * FLUSH_EVENTS, 3 * FLUSH_EVENTS]
    bench.write(out("later", "h", p=1))
    assert group.step(2000, 0.0)[0] == 1


def test_rows_of_an_empty_bucket_are_not_read_until_one_is_evicted(bench: FoldBench) -> None:
    writer = writer_of(bench, most=3)
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


def test_a_read_that_fails_during_a_flush_leaves_no_writer_out_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FoldBench(household_spend)
    backlog(bench)
    bench.settle()
    projector = bench.settle(bench.projector())
    bench.write(out("z", "h1", p=1))
    assert projector.step(0.0)
    bench.write(out("z2", "h2", p=1))
    monkeypatch.setattr(bench.store, "read_all", _away)
    with pytest.raises(InfrastructureError, match="is not reachable"):
        projector.step(0.0)
    monkeypatch.undo()
    bench.reports.clear()
    bench.settle(projector)
    assert bench.reports == []
    assert sum(totals(bench).values()) == EVENTS + 2


def _away(asked: Any) -> Any:
    raise InfrastructureError("the store is not reachable")


@dataclass(frozen=True)
class Strict:
    total: Decimal


def strict(row: Strict | None, event: CheckedOut) -> Strict | None:
    if event.household == "repeated" and row == Strict(event.total):
        raise ValueError("this has happened already")
    return Strict(Decimal("NaN") if event.household == "unstorable" else event.total)


strict_view = FoldView("strict_view", events=CheckedOut, row=Strict, evolve=strict, indexes=("total",))


def test_the_live_generation_never_overtakes_the_next_one_that_tracks_rows() -> None:
    bench = FoldBench(strict_view)
    projector = bench.fold(None, out("b", "h", p=1))
    old = bench.live(strict_view)
    new = open_generation(bench.store, strict_view, old.topics, Phase.SEALED)
    bench.settle(projector)
    for number in range(3):
        bench.write(out(f"b{number}", "unstorable", p=1))
        for _ in range(4):
            projector.step(0.0)
            there, next_ = (covered(one, bench.store.checkpoints(one)) for one in (old, new))
            assert next_.covers(there)
    bench.settle(projector)
    assert {key for checkpoint in bench.store.checkpoints(new).values() for key in checkpoint.parked} == {
        "b0",
        "b1",
        "b2",
    }


def test_only_an_unstorable_row_is_tracked_and_only_until_its_flush() -> None:
    bench = FoldBench(strict_view)
    bench.settle()
    writer, decode = (writer_of(bench, strict_view), EventDecoder([strict_view]).decode_all)
    records = decode([*bench.write(out("a", "unstorable", p=1)), *bench.write(out("b", "h", p=1))])
    reached = bench.log.reader().ends([TOPIC])
    writer.look(records)
    with pytest.raises(RowEncodingError) as caught:
        writer.begin(reached | Position.at("other.events", 0, 7))
    writer.rewind()
    assert [key for _, key in caught.value.rows] == [key for _, key in writer._unstorable] == ["a"]
    writer.look(records)
    assert [key for _, key in writer._fold._tracked] == ["a"]
    writer.begin(reached)
    assert writer.landed()
    assert writer._unstorable == writer._fold._to_track == set()
    assert writer._fold._tracked == {}
    assert {key for checkpoint in writer.checkpoints.values() for key in checkpoint.parked} == {"a"}


def test_a_writer_that_was_overtaken_is_out_of_step_and_does_not_stop_its_view() -> None:
    """Its rows hold the events already, and a strict fold raises; that is no reason to stop."""
    bench = FoldBench(strict_view)
    bench.settle()
    for number in range(150):
        bench.write(out(f"b{number}", "h", p=1))
    bench.settle()
    mine, other = (writer_of(bench, strict_view) for _ in range(2))
    decode = EventDecoder([strict_view]).decode_all
    records = decode(record for n in range(150) for record in bench.write(out(f"b{n}", "repeated", p=2)))
    reached = bench.log.reader().ends([TOPIC])
    missing = mine.look(records)
    assert other.fold(records, reached)
    mine.enter(bench.store.read(mine.generation, missing))
    mine.begin(reached)
    assert not mine.landed()
    assert not mine.stopped


def fold(writer: ProjectionWriter, *records: Any) -> bool:
    decode = EventDecoder([household_spend]).decode
    reached = writer.position()
    for record in records:
        reached |= Position.at(TOPIC, record.partition, record.offset + 1)
    return writer.fold([decode(record) for record in records], reached)


def test_the_later_flush_of_two_writers_writes_nothing_until_it_has_read_the_checkpoints(bench: FoldBench) -> None:
    mine, other = writer_of(bench), writer_of(bench)
    records = bench.write(out("b", "h", p=1))
    assert fold(other, *records)
    assert not fold(mine, *records)
    mine.reread()
    assert fold(mine, *records)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(1), "base")}


def test_twin_with_the_current_token_a_stale_writer_overwrites_rows(bench: FoldBench) -> None:
    """The twin: a stale writer that is given the current token overwrites with what it remembers."""
    stale = writer_of(bench)
    assert fold(stale, *bench.write(out("a", "h", p=1)))
    assert fold(writer_of(bench), *bench.write(out("b", "h", p=2)))
    current = bench.store.checkpoints(stale.generation)
    stale.checkpoints = {
        number: replace(checkpoint, token=current[number].token) for number, checkpoint in stale.checkpoints.items()
    }
    assert fold(stale, *bench.write(out("c", "h", p=4)))
    assert bench.rows(household_spend) == {"h": Spend(Decimal(5), "base")}


@pytest.mark.parametrize("seconds", [0.0, float("inf")], ids=["", "twin"])
@pytest.mark.parametrize("more", [1, 0], ids=["events come", "idle"])
def test_a_store_that_went_back_in_time_heals(more: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin never looks at its checkpoints: older rows stay until the next event."""
    monkeypatch.setattr(shared_subscription, "CONFIRM_SECONDS", seconds)
    bench = FoldBench(household_spend)
    projector = bench.fold(None, out("a", "h", p=1))
    saved = deepcopy(bench.store._buckets)
    bench.fold(projector, out("b", "h", p=2))
    bench.store._buckets = saved
    bench.write(*[out("c", "h", p=4)] * more)
    for _ in range(20):
        projector.step(0.0)
    bench.settle(projector)
    assert totals(bench) == {"h": 3 + 4 * more if more or not seconds else 1}


def test_of_several_generations_the_newest_is_flushed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes live is then never behind what was."""
    bench = FoldBench(household_spend)
    projector, order = bench.settle(), list[str]()
    old, begin = bench.live(household_spend), bench.store.begin_flush
    new = open_generation(bench.store, household_spend, old.topics, Phase.SEALED)
    bench.settle(projector)

    def begin_flush(flushes: Sequence[BucketFlush]) -> Any:
        order.extend({flush.generation.id for flush in flushes})
        return begin(flushes)

    monkeypatch.setattr(bench.store, "begin_flush", begin_flush)
    for number in range(5):
        bench.fold(projector, out(f"b{number}", "h", p=1))
    assert order == [new.id, old.id] * 5


def test_two_projectors_together_fold_every_event_once() -> None:
    bench = FoldBench()
    one, two = bench.projector(batch=3), bench.projector(batch=5)
    for number in range(60):
        bench.write(out(f"b{number}", f"h{number % 7}", p=1))
        (one if number % 2 else two).step(0.0)
    bench.until(one, lambda: not one.step(0.0) and not two.step(0.0) and one.caught_up())
    rows = bench.rows(household_spend)
    assert sum(row.total for row in rows.values()) == 60


def test_a_lost_checkpoint_discards_the_generation_and_a_new_one_is_folded() -> None:
    bench = FoldBench(household_spend)
    projector = bench.fold(None, out("b", "h", p=1))
    lost = bench.live(household_spend)
    del bench.store._buckets[lost.view, lost.id, 3]
    bench.write(out("c", "h", p=1))
    bench.until(projector, lambda: bool(bench.reports.of("generation lost")))
    bench.settle(projector)
    assert bench.live(household_spend).id != lost.id
    assert lost.id not in bench.store.registry("household_spend").generations
    assert not any(key[1] == lost.id for key in bench.store._buckets)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(2), "base")}


def test_a_writer_of_a_generation_without_all_checkpoints_refuses_to_begin(bench: FoldBench) -> None:
    generation = bench.live(household_spend)
    del bench.store._buckets[generation.view, generation.id, 3]
    with pytest.raises(ViewNotBuilt, match=r"lost the checkpoints of buckets \[3\]; build it again"):
        writer_of(bench)
