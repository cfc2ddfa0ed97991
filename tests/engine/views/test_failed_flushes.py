"""Flushes and reads that fail, projection writers that were overtaken, rows that must be folded with care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.folded_rows import RowEncodingError
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Phase, covered
from tests.domains.shop import CheckedOut, checkouts, household_spend
from tests.engine.folding import TOPIC, FoldBench, out
from tests.engine.views.test_backlog import EVENTS, backlog, totals


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
            there, next_ = (covered(one, bench.store.checkpoints(one)) for one in (old, new))
            assert next_.covers(there)
    bench.settle(tail)
    assert {key for checkpoint in bench.store.checkpoints(new).values() for key in checkpoint.parked} == {
        "b0",
        "b1",
        "b2",
    }


def test_care_is_for_the_row_in_trouble_and_ends_with_the_flush() -> None:
    bench = FoldBench(stranger)
    bench.settle()
    writer, decode = ProjectionWriter(stranger, bench.live(stranger), bench.store), EventDecoder([stranger]).decode_all
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


def test_a_tail_that_was_overtaken_is_out_of_step_and_does_not_stop_its_view() -> None:
    """Its rows hold the events already, and a strict fold raises; that is no reason to stop."""
    bench = FoldBench(stranger)
    bench.settle()
    for number in range(150):
        bench.write(out(f"b{number}", "h", p=1))
    bench.settle()
    mine, other = (ProjectionWriter(stranger, bench.live(stranger), bench.store) for _ in range(2))
    decode = EventDecoder([stranger]).decode_all
    records = decode(record for n in range(150) for record in bench.write(out(f"b{n}", "repeated", p=2)))
    reached = bench.log.reader().ends([TOPIC])
    missing = mine.look(records)
    assert other.fold(records, reached)
    mine.enter(bench.store.read(mine.generation, missing))
    mine.begin(reached)
    assert not mine.landed()
    assert not mine.stopped
