"""Generations of a view in its registry: how they are made, pointed at and found."""

from __future__ import annotations

from dataclasses import replace

from leftfold.engine.views.generations import change, empty_marks, followed, new_generation, open_generation
from leftfold.memory import MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Phase, Registry, While, covered
from tests.domains.shop import household_spend, open_baskets
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench

TOPICS = {TOPIC: PARTITIONS}


def test_generations_are_numbered_and_never_share_an_id() -> None:
    registry = Registry()
    first = new_generation(household_spend, registry, TOPICS, Phase.BULK)
    registry = registry.with_generation(first)
    second, third = (new_generation(household_spend, registry, TOPICS, Phase.BULK) for _ in range(2))
    assert first.id.startswith("1-")
    assert second.id.startswith("2-")
    assert second.id != third.id or second.created
    assert (first.buckets, new_generation(open_baskets, registry, TOPICS, Phase.BULK).buckets) == (16, PARTITIONS)


def test_a_new_generation_has_all_its_checkpoints_before_it_is_registered() -> None:
    store = MemoryViewStore()
    generation = open_generation(store, household_spend, TOPICS, Phase.BULK)
    assert store.registry("household_spend").generations == {generation.id: generation}
    assert store.checkpoints(generation) == {n: Checkpoint(Position(), phase=Phase.BULK) for n in range(16)}


def test_a_projector_follows_sealed_live_and_kept_generations_of_its_hash() -> None:
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


def test_a_change_of_the_registry_is_applied_to_its_latest_version() -> None:
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
