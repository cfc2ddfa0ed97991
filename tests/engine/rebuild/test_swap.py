"""When a rebuilt generation goes live, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild
from leftfold.engine.rebuild.result import Agreement, Comparison
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import change, format_time, open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.projector import Projector
from leftfold.engine.views.shared_subscription import SharedSubscription
from leftfold.errors import Fenced
from leftfold.memory import MemoryViewStore, World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult
from leftfold.ports.flush import BucketFlush, Parked, Phase, Registry, While, covered
from tests.domains.ledger import LedgerEvent, Summary, app, by_owner, summary
from tests.domains.ledger_world import folded, ledger_world, live, parked, rebuild, rows_of, send
from tests.domains.shop import household_spend
from tests.engine.fold_bench import FoldBench, out
from tests.engine.verify.test_parked_retry import corrected
from tests.waiting import step_until


def ids(world: World, view: View[Any, Any]) -> set[str]:
    return set(world.store.registry(view.name).generations)


def test_a_live_generation_that_cannot_move_is_replaced_without_a_comparison(world: World) -> None:
    old = live(world, summary)
    checkpoint = world.store.checkpoints(old)[0]
    parked = {f"p{n}": Parked("ledgers.events", 0, n, "ValueError: no") for n in range(101)}
    behind = replace(checkpoint, position=Position(), parked=parked, token="stuck")
    assert world.store.flush([BucketFlush(old, 0, checkpoint.token, behind, (), ())])
    result = rebuild(world, summary).run()
    assert (result.agreement, result.swapped) == (Agreement.UNKNOWN, True)
    assert "does not move on" in result.why


def test_a_rebuild_with_different_rows_is_not_swapped_in_and_is_removed(world: World) -> None:
    old = live(world, summary)
    checkpoint = world.store.checkpoints(old)[0]
    assert world.store.flush(
        [BucketFlush(old, 0, checkpoint.token, replace(checkpoint, checksum=checkpoint.checksum ^ 1), (), ())]
    )
    result = rebuild(world, summary).run()
    assert (result.agreement, result.swapped, result.exit_code) == (Agreement.DIFFERENT, False, 3)
    assert abs(result.checksum - result.old_checksum) == 1
    assert ids(world, summary) == {old.id}
    assert rebuild(world, summary, swap_anyway=True).run().swapped


class _Overtaken(MemoryViewStore):
    """The live generation moves on between the last look at it and the swap, once: a projector was faster."""

    is_careless = False
    overtake: Callable[[], object] | None = None

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Changes it, later than was meant."""
        if before.live != after.live and (overtake := self.overtake):
            self.overtake = None
            overtake()
        return super().change_registry(view, before, after, None if self.is_careless else while_)


@pytest.mark.parametrize("is_careless", [False, True], ids=["", "twin"])
def test_a_generation_that_was_overtaken_catches_up_before_it_goes_live(is_careless: bool) -> None:
    bench = FoldBench(household_spend)
    bench.store = store = _Overtaken()
    bench.fold(None, out("b1", "h1", tea=1))
    old = bench.live(household_spend)
    group = SharedSubscription(bench.log.reader, [ProjectionWriter(household_spend, old, store)], store)

    def overtake() -> None:
        bench.write(out("b2", "h1", tea=1))
        assert group.step(100, 0.0)[0]
        assert not group.land()

    store.is_careless, store.overtake = is_careless, overtake
    assert rebuild(bench, household_spend, keep=3600.0).run().swapped
    new = bench.live(household_spend)
    assert covered(new, store.checkpoints(new)).covers(covered(old, store.checkpoints(old))) is not is_careless


def never(row: Summary | None, event: LedgerEvent) -> Summary | None:
    raise ValueError("a slip in this version")


def test_a_fold_that_parks_more_rows_does_not_go_live(world: World) -> None:
    rows, old = rows_of(world, summary), live(world, summary)
    broken = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=never)
    result = rebuild(world, broken).run()
    assert (result.agreement, result.swapped, result.exit_code) == (Agreement.WORSE, False, 3)
    assert "ValueError: a slip in this version" in str(result)
    assert f"readers still see {old.id}" in str(result)
    assert rows_of(world, summary) == rows
    assert rebuild(world, broken, swap_anyway=True).run().swapped
    assert rebuild(world, summary).run().swapped, "a corrected fold parks less, and goes live unasked"
    assert rows_of(world, summary) == rows


def test_a_fold_that_frees_rows_and_changes_others_does_not_go_live(poisoned_world: World) -> None:
    """A row that is parked no more must not keep the others from being compared."""
    world = poisoned_world
    waiting, old = parked(world), live(world, summary)
    assert waiting

    def wrong(row: Summary | None, event: LedgerEvent) -> Summary | None:
        after = corrected(row, event)
        return replace(after, balance=after.balance + 1) if after is not None else None

    view = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=wrong)
    result = rebuild(world, view).run()
    assert (result.agreement, result.swapped, result.parked) == (Agreement.DIFFERENT, False, {})
    assert live(world, summary) == old
    result = rebuild(world, FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=corrected)).run()
    assert (result.agreement, result.swapped, result.parked) == (Agreement.UNKNOWN, True, {})


def test_rows_that_were_parked_are_compared_only_where_nothing_was_written_meanwhile(poisoned_world: World) -> None:
    """A row may be newer than the checkpoint that was read with it: then the bucket is looked at again."""
    world = poisoned_world
    old, store = live(world, summary), world.store
    view = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=corrected)
    new = rebuild(world, view, hold=True).run().generation
    generation = store.registry(summary.name).generations[new]
    comparison = Comparison(view, old, generation, store)
    stale = {b: replace(checkpoint, token="earlier") for b, checkpoint in store.checkpoints(generation).items()}
    assert not comparison.look(store.checkpoints(old), stale)
    assert comparison.look(store.checkpoints(old), store.checkpoints(generation))
    assert comparison.agreement is Agreement.UNKNOWN


def test_more_rows_may_be_parked_while_catching_up_than_usual(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ProjectionWriter.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(ProjectionWriter.__init__, "__kwdefaults__", {**usual, "max_parked": 3})
    broken = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=never)
    work = interfering(world, after=lambda job: send(world, 7, 30))
    work.view, work.options = broken, replace(work.options, max_parked=10_000, swap_anyway=True)
    assert len(work.run().parked) > 3


def test_a_leftover_that_went_live_meanwhile_is_not_removed(world: World) -> None:
    first = live(world, summary)
    rebuild(world, summary, keep=3600.0).run()
    kept = world.store.registry(summary.name).generations[first.id]
    change(world.store, summary.name, lambda registry: registry.pointed(kept))
    assert live(world, summary).id == first.id
    remove(world.store, kept)
    assert live(world, summary).id == first.id
    assert rows_of(world, summary) == folded(world, summary)


def test_a_replaced_generation_is_kept_for_its_time_and_removed_by_a_later_rebuild(world: World) -> None:
    first = live(world, summary)
    second = rebuild(world, summary, keep=3600.0).run()
    assert second.kept == first.id
    assert world.store.registry(summary.name).generations[first.id].phase is Phase.KEPT
    third = rebuild(world, summary, keep=3600.0).run()
    assert ids(world, summary) == {first.id, second.generation, third.generation}
    fourth = rebuild(world, summary).run()
    assert ids(world, summary) == {first.id, second.generation, fourth.generation}, "their time is not over"
    for id_ in (first.id, second.generation):
        over = replace(world.store.registry(summary.name).generations[id_], until=format_time(-1.0))
        change(world.store, summary.name, lambda registry, over=over: registry.with_generation(over))  # type: ignore[misc]
    fifth = rebuild(world, summary).run()
    assert ids(world, summary) == {fifth.generation}
    assert world.store.checkpoints(first) == {}


def interfering(
    world: World, before: Callable[[BulkJob], object] = id, after: Callable[[BulkJob], object] = id
) -> Rebuild:
    """A rebuild of the summary, and what happens before and after its fold."""

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        before(job)
        results = run_locally(job, plan, tell)
        after(job)
        return results

    work = rebuild(world, summary)
    work._run = run
    return work


@pytest.mark.parametrize("waits", [True, False], ids=["", "twin"])
@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_readers_see_no_older_row_when_the_log_overtakes_a_rebuild(
    view: Any, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin goes live before it has caught up with the rows that readers see."""
    seen = list[tuple[Position, Position]]()

    class Store(MemoryViewStore):
        def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
            for pointer, id_ in after.live.items() if before.live != after.live else ():
                there = [before.generations.get(before.live.get(pointer, "")), after.generations[id_]]
                positions = [Position() if g is None else covered(g, self.checkpoints(g)) for g in there]
                seen.append((positions[0], positions[1]))
            return super().change_registry(view, before, after, while_ if waits else None)

    monkeypatch.setattr("leftfold.engine.rebuild.swap._COMPARE_SECONDS", 0.0)
    if not waits:
        monkeypatch.setattr(Swap, "_past", lambda self, *positions: True)
    with ledger_world(30) as world:
        world.store = Store()
        projector = Projector([view], world.log.reader, world.store, look=0.0)
        settle(projector)
        seen.clear()

        def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
            results = run_locally(job, plan, tell)
            send(world, 6, 50)
            settle(projector)
            return results

        work = rebuild(world, view)
        work._run = run
        assert work.run().swapped
    ((old, new),) = seen
    assert new.covers(old) is waits


def settle(projector: Projector) -> None:
    step_until(lambda: None, lambda: not projector.step(0.0) and projector.caught_up(), "the projector to catch up")


def test_a_generation_that_was_removed_meanwhile_never_goes_live(world: World) -> None:
    before = live(world, summary)

    with pytest.raises(Fenced):
        interfering(world, after=lambda job: remove(world.store, job.generation)).run()
    assert world.store.registry(summary.name).live_of(summary.hash) == before
    assert ids(world, summary) == {before.id}


def test_a_generation_that_a_projector_began_meanwhile_is_removed_at_the_swap(world: World) -> None:
    change(world.store, summary.name, lambda registry: registry.without(live(world, summary).id))

    topics = {"ledgers.events": app.partitions}
    result = interfering(world, before=lambda job: open_generation(world.store, summary, topics, Phase.SEALED)).run()
    assert (result.agreement, result.swapped) == (Agreement.ALONE, True)
    assert ids(world, summary) == {result.generation}
