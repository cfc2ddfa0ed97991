"""Rebuilds: of one view and of several in one pass, and beside a successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import FoldView
from leftfold.engine.rebuild import rebuilder as rebuilding
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, StartedRebuild, rebuild_together, unfinished
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.views.cleanup import remove, sweep
from leftfold.errors import ContractError, Fenced, InfrastructureError, LeftfoldError
from leftfold.memory import World
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.flush import Generation, Phase
from tests.domains.ledger import LedgerEvent, Summary, by_owner, by_tag, summarise, summary
from tests.domains.ledger_world import VIEWS, folded, ledger_world, live, rebuild, rows_of, send
from tests.engine.committed_log import CommittedLog
from tests.engine.rebuild.test_resuming import interrupt_rebuild


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 120), poison=st.sampled_from([0.0, 0.05]))
def test_a_rebuild_equals_the_projector_and_the_fold(seed: int, count: int, poison: float) -> None:
    with ledger_world(count, seed=seed, poison=poison) as world:
        for view in VIEWS:
            before = world.views[view].describe()
            result = rebuild(world, view).run()
            after = world.views[view].describe()
            assert result.agreement is Agreement.EQUAL, result
            assert (after.checksum, after.rows, after.position) == (before.checksum, before.rows, before.position)
            assert after.generation != before.generation
            assert after.parked == before.parked
            if not before.parked:
                assert rows_of(world, view) == folded(world, view)
        assert all(world.views[by_owner].find(positive=True).values())


def test_a_fold_whose_meaning_changed_without_a_version_is_not_swapped_in(world: World) -> None:
    def generous(row: Summary | None, event: LedgerEvent) -> Summary | None:
        made = summarise(row, event)
        return made and Summary(made.owner, made.moves, made.balance + 1, made.last)

    changed = FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=generous)
    before = live(world, summary).id
    result = rebuild(world, changed).run()
    assert (result.agreement, result.exit_code) == (Agreement.DIFFERENT, 3)
    assert live(world, summary).id == before
    assert rebuild(world, changed, swap_anyway=True).run().swapped
    assert live(world, summary).id != before


def test_a_rebuild_that_fails_leaves_no_trace() -> None:
    with ledger_world(200, poison=0.9) as world:
        before = world.store.registry(summary.name)
        with pytest.raises(ContractError, match="more than 3 keys are parked"):
            rebuild(world, summary, max_parked=3).run()
        assert world.store.registry(summary.name) == before
        assert all(g.phase is not Phase.BULK for g in before.generations.values())


def test_views_rebuilt_in_one_pass_equal_those_rebuilt_alone(poisoned_world: World) -> None:
    rebuilds = [rebuild(poisoned_world, view) for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan())
    assert [(result.view, result.agreement, result.swapped) for result in results] == [
        (view.name, Agreement.EQUAL, True) for view in VIEWS
    ]
    for view, result in zip(VIEWS, results, strict=True):
        alone = rebuild(poisoned_world, view, hold=True).run()
        assert (result.checksum, result.rows, result.parked) == (alone.checksum, alone.rows, alone.parked)
    assert results[0].parked, "a poisoned row is parked in a pass, too"


def test_one_pass_reads_each_partition_once(poisoned_world: World) -> None:
    reads: list[int] = []

    class Counted(CommittedLog):
        def read(self, part: Any) -> Any:
            reads.append(part.partition)
            return super().read(part)

    rebuilds = [rebuild(poisoned_world, view) for view in VIEWS]
    for one in rebuilds:
        one._open_log = lambda: Counted(poisoned_world.log.reader())
    rebuild_together(rebuilds, rebuilds[0].plan())
    assert sorted(reads) == [0, 1, 2, 3]


def test_in_one_pass_a_continued_view_folds_only_its_rest(poisoned_world: World) -> None:
    interrupt_rebuild(poisoned_world)
    send(poisoned_world, 6, 30)
    rebuilds = [rebuild(poisoned_world, view, fold="v1") for view in VIEWS]
    results = rebuild_together(rebuilds, rebuilds[0].plan())
    assert all(result.swapped for result in results)
    assert rows_of(poisoned_world, by_tag) == folded(poisoned_world, by_tag)
    assert results[0].events < results[1].events


def test_an_interrupted_pass_keeps_what_is_done_of_each_view(poisoned_world: World) -> None:
    def run(jobs: Any, plan: Any, tell: Any) -> Any:
        job: BulkJob = jobs[0]
        next(job.fold_streams((part for task in plan.tasks for part in task), tell))
        raise KeyboardInterrupt

    before = {view.name: live(poisoned_world, view).id for view in VIEWS}
    rebuilds = [rebuild(poisoned_world, view, fold="v1") for view in VIEWS]
    with pytest.raises(KeyboardInterrupt):
        rebuild_together(rebuilds, rebuilds[0].plan(), run)
    assert {view.name: live(poisoned_world, view).id for view in VIEWS} == before
    assert rebuild(poisoned_world, summary, fold="v1").run().swapped


GROUP = names.rebuilds(summary.name)
Fail = Callable[[BaseException], None]


@pytest.fixture(autouse=True)
def _leases_are_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild that counts as dead has a thread that lives, which would show it again after seconds."""
    monkeypatch.setattr("leftfold.engine.views.leases._SHOWN_EVERY", 3600.0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is begun in a test ends in it, however."""
    with ExitStack() as stack:
        yield stack


def pause(world: World) -> None:
    """Lets the time of every rebuild at work run out."""
    for member in world.store.heartbeat([GROUP], "", 0.0)[GROUP]:
        world.store.heartbeat([GROUP], member, 0.0)


def pause_rebuild(world: World, stack: ExitStack, **options: Any) -> tuple[StartedRebuild, Fail]:
    """A rebuild that has begun and counts as dead; and what makes it fail with an error."""
    context = rebuild(world, summary, **{"fold": "v1", **options}).begun()
    begun = context.__enter__()
    pause(world)

    def fail(error: BaseException) -> None:
        assert not context.__exit__(type(error), error, None), "it is raised again"

    stack.callback(lambda: context.__exit__(None, None, None))
    return begun, fail


def finish(world: World, work: Rebuild, begun: StartedRebuild) -> None:
    """The successor comes to its end, and readers see what the log makes."""
    work.fold(begun)
    assert work.swap(begun).swapped
    assert live(world, summary).id == begun.generation.id
    assert rows_of(world, summary) == folded(world, summary)


@pytest.mark.parametrize("error", [ContractError("no"), InfrastructureError("no"), Fenced("no"), KeyboardInterrupt()])
def test_a_paused_rebuild_that_fails_leaves_the_generation_of_its_successor(
    world: World, stack: ExitStack, error: BaseException
) -> None:
    woken, fail = pause_rebuild(world, stack)
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    assert begun.generation.id == woken.generation.id, "it continues where the paused one was"
    fail(error)
    finish(world, work, begun)


def test_twin_without_a_claim_a_paused_rebuild_removes_the_generation_of_its_successor(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclaimed(store: Any, generation: Generation, attempt: str) -> Generation:
        return generation

    monkeypatch.setattr(rebuilding, "take_over", unclaimed)
    _, fail = pause_rebuild(world, stack)
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    fail(ContractError("no"))
    with pytest.raises(LeftfoldError):
        finish(world, work, begun)


@pytest.mark.parametrize("options", [{}, {"hold": True}, {"pin": "then"}], ids=str)
def test_a_paused_rebuild_neither_seals_nor_swaps_the_generation_of_its_successor(
    world: World, stack: ExitStack, options: dict[str, Any]
) -> None:
    woken, _ = pause_rebuild(world, stack, **options)
    work = rebuild(world, summary, fold="v1", **options)
    begun = stack.enter_context(work.begun())
    with pytest.raises(Fenced, match=r"was taken over by .*process"):
        woken.rebuild.fold(woken)
    work.fold(begun)
    with pytest.raises(Fenced, match="was taken over by"):
        woken.rebuild.swap(woken)
    work.swap(begun)
    assert world.store.registry(summary.name).generations[begun.generation.id].phase is not Phase.BULK


def test_the_generation_of_a_running_rebuild_is_neither_swept_nor_continued(world: World, stack: ExitStack) -> None:
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    options = RebuildOptions(fold="v1")
    assert unfinished(world.store, summary, options) is None
    assert sweep(world.store, summary, 0.0) == []
    assert begun.generation.id in world.store.registry(summary.name).generations
    pause(world)
    left = unfinished(world.store, summary, options)
    assert left is not None
    assert left.id == begun.generation.id
    assert [gone.id for gone in sweep(world.store, summary, 0.0)] == [begun.generation.id]


def test_a_rebuild_that_was_paused_while_it_planned_begins_no_generation(world: World, stack: ExitStack) -> None:
    successor = rebuild(world, summary, fold="v1")
    woken = rebuild(world, summary, fold="v1")
    plan, begun = woken.plan, list[StartedRebuild]()

    def paused_plan(as_of: Position | None = None) -> RebuildPlan:
        pause(world)
        begun.append(stack.enter_context(successor.begun()))
        return plan(as_of)

    woken.plan = paused_plan  # type: ignore[method-assign]
    with pytest.raises(InfrastructureError, match="is being rebuilt already by"):
        woken.run()
    finish(world, successor, begun[0])


def test_a_removal_leaves_a_generation_that_was_claimed_since_its_decision(world: World, stack: ExitStack) -> None:
    woken, _ = pause_rebuild(world, stack)
    seen = world.store.registry(summary.name).generations[woken.generation.id]
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    after = world.store.registry(summary.name)
    assert after.generations[seen.id].attempt != seen.attempt
    remove(world.store, seen)
    finish(world, work, begun)
