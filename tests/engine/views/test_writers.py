from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from leftfold import ViewNotBuilt
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.generations import change, empty_marks, followed, new_generation, open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.memory import MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Phase, Registry, While, covered
from tests.domains.shop import Spend, household_spend, open_baskets
from tests.engine.folding import PARTITIONS, TOPIC, FoldBench, out

TOPICS = {TOPIC: PARTITIONS}


def writer(bench: FoldBench) -> ProjectionWriter:
    return ProjectionWriter(household_spend, bench.live(household_spend), bench.store)


def fold(writer: ProjectionWriter, *records: Any) -> bool:
    decode = EventDecoder([household_spend]).decode
    reached = writer.position()
    for record in records:
        reached |= Position.at(TOPIC, record.partition, record.offset + 1)
    return writer.fold([decode(record) for record in records], reached)


def test_of_two_writers_the_later_flush_writes_nothing_until_it_has_read_the_marks_again() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    mine, other = writer(bench), writer(bench)
    records = bench.write(out("b", "h", p=1))
    assert fold(other, *records)
    assert not fold(mine, *records)
    mine.reread()
    assert fold(mine, *records)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(1), "base")}


def test_without_the_token_a_stale_writer_would_lose_what_the_other_wrote() -> None:
    """The twin: a stale writer that is given the current token overwrites with what it remembers."""
    bench = FoldBench(household_spend)
    bench.settle()
    stale = writer(bench)
    assert fold(stale, *bench.write(out("a", "h", p=1)))
    assert fold(writer(bench), *bench.write(out("b", "h", p=2)))
    current = bench.store.checkpoints(stale.generation)
    stale.checkpoints = {
        number: replace(checkpoint, token=current[number].token) for number, checkpoint in stale.checkpoints.items()
    }
    assert fold(stale, *bench.write(out("c", "h", p=4)))
    assert bench.rows(household_spend) == {"h": Spend(Decimal(5), "base")}


def test_events_below_a_mark_are_not_folded_again() -> None:
    bench = FoldBench(household_spend)
    records = bench.write(out("b", "h", p=1))
    bench.settle()
    assert fold(writer(bench), *records)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(1), "base")}


def test_a_tail_that_meets_another_writer_reads_again_and_goes_on() -> None:
    bench = FoldBench()
    tail = bench.settle()
    bench.change_marks(household_spend, lambda checkpoint: checkpoint)
    bench.write(out("b", "h", p=1))
    bench.until(tail, lambda: any(what == "out of step" for what, _ in bench.reports))
    bench.settle(tail)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(1), "base")}


def test_a_store_that_went_back_in_time_heals() -> None:
    bench = FoldBench(household_spend)
    bench.write(out("a", "h", p=1))
    tail = bench.settle()
    generation = bench.live(household_spend)
    old = {number: bucket for number in range(16) if (bucket := bench.store.bucket(generation, number))}
    saved = {
        number: (b.checkpoint, {k: dict(v) for k, v in b.rows.items()}, dict(b.indexed)) for number, b in old.items()
    }
    bench.write(out("b", "h", p=2))
    bench.settle(tail)
    for number, (checkpoint, rows, indexed) in saved.items():
        bucket = old[number]
        bucket.checkpoint, bucket.rows, bucket.indexed = checkpoint, rows, indexed
    bench.write(out("c", "h", p=4))
    bench.settle(tail)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(7), "base")}


def test_two_tails_together_fold_every_event_once() -> None:
    bench = FoldBench()
    one, two = bench.tail(batch=3), bench.tail(batch=5)
    for number in range(60):
        bench.write(out(f"b{number}", f"h{number % 7}", p=1))
        (one if number % 2 else two).step(0.0)
    bench.until(one, lambda: not one.step(0.0) and not two.step(0.0) and one.caught_up())
    rows = bench.rows(household_spend)
    assert sum(row.total for row in rows.values()) == 60


def test_a_lost_mark_discards_the_generation_and_a_new_one_is_folded() -> None:
    bench = FoldBench(household_spend)
    bench.write(out("b", "h", p=1))
    tail = bench.settle()
    lost = bench.live(household_spend)
    del bench.store._buckets[lost.view, lost.id, 3]
    bench.write(out("c", "h", p=1))
    bench.until(tail, lambda: any(what == "generation lost" for what, _ in bench.reports))
    bench.settle(tail)
    assert bench.live(household_spend).id != lost.id
    assert lost.id not in bench.store.registry("household_spend").generations
    assert not any(key[1] == lost.id for key in bench.store._buckets)
    assert bench.rows(household_spend) == {"h": Spend(Decimal(2), "base")}


def test_a_follower_of_a_generation_without_all_marks_refuses_to_begin() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    generation = bench.live(household_spend)
    del bench.store._buckets[generation.view, generation.id, 3]
    with pytest.raises(ViewNotBuilt, match=r"lost the checkpoints of buckets \[3\]; build it again"):
        writer(bench)


def test_generations_are_numbered_and_never_share_an_id() -> None:
    registry = Registry()
    first = new_generation(household_spend, registry, TOPICS, Phase.BULK)
    registry = registry.with_generation(first)
    second, third = (new_generation(household_spend, registry, TOPICS, Phase.BULK) for _ in range(2))
    assert first.id.startswith("1-")
    assert second.id.startswith("2-")
    assert second.id != third.id or second.created
    assert (first.buckets, new_generation(open_baskets, registry, TOPICS, Phase.BULK).buckets) == (16, PARTITIONS)


def test_a_new_generation_has_all_its_marks_before_anyone_can_see_it() -> None:
    store = MemoryViewStore()
    generation = open_generation(store, household_spend, TOPICS, Phase.BULK)
    assert store.registry("household_spend").generations == {generation.id: generation}
    assert store.checkpoints(generation) == {n: Checkpoint(Position(), phase=Phase.BULK) for n in range(16)}


def test_a_tail_follows_sealed_live_and_kept_generations_of_its_hash_and_no_bulk_one() -> None:
    store = MemoryViewStore()
    phases = [Phase.BULK, Phase.SEALED, Phase.LIVE, Phase.KEPT]
    made = [open_generation(store, household_spend, TOPICS, phase) for phase in phases]
    other = replace(made[1], id="9-other", hash="another")
    change(store, "household_spend", lambda r: r.with_generation(other))
    found = followed(store.registry("household_spend"), household_spend)
    assert {generation.phase for generation in found.values()} == set(phases) - {Phase.BULK}
    assert "9-other" not in found


def test_pointing_keeps_the_predecessor() -> None:
    store = MemoryViewStore()
    one, two = (open_generation(store, household_spend, TOPICS, Phase.SEALED) for _ in range(2))
    change(store, "household_spend", lambda r: r.pointed(one))
    registry = change(store, "household_spend", lambda r: r.pointed(two))
    assert registry.live == {household_spend.hash: two.id}
    assert {g.id: g.phase for g in registry.generations.values()} == {one.id: Phase.KEPT, two.id: Phase.LIVE}
    assert registry.without(two.id).live == {}


def test_a_change_of_the_registry_is_applied_to_what_is_there_when_it_lands() -> None:
    class Busy(MemoryViewStore):
        raced = False

        def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
            if not self.raced:
                self.raced = True
                open_generation(self, household_spend, TOPICS, Phase.SEALED)
                return False
            return super().change_registry(view, before, after, while_)

    store = Busy()
    generation = new_generation(household_spend, Registry(), TOPICS, Phase.SEALED)
    registry = change(store, "household_spend", lambda r: r.with_generation(generation))
    assert len(registry.generations) == 2


def test_a_view_has_covered_what_its_least_bucket_has() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    generation = bench.live(household_spend)
    checkpoints = empty_marks(generation) | {n: Checkpoint(Position.at(TOPIC, 0, n)) for n in range(1, 16)}
    assert covered(generation, checkpoints).next_offset(TOPIC, 0) == 0
    checkpoints[0] = Checkpoint(Position.at(TOPIC, 0, 9))
    assert covered(generation, checkpoints).next_offset(TOPIC, 0) == 1


def test_a_flush_is_all_or_nothing() -> None:
    bench = FoldBench(household_spend)
    bench.settle()
    generation = bench.live(household_spend)
    checkpoints = bench.store.checkpoints(generation)
    flushes = [
        BucketFlush(generation, n, checkpoints[n].token if n else "stale", replace(checkpoints[n], token="x"), (), ())
        for n in (1, 0)
    ]
    assert not bench.store.flush(flushes)
    assert bench.store.checkpoints(generation) == checkpoints
