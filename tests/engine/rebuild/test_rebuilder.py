"""Rebuilds: of one view and of several in one pass, interrupted and continued, and beside a successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import FoldView
from leftfold.engine.rebuild import rebuilder as rebuilding
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, StartedRebuild, rebuild_together, unfinished
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.engine.views.cleanup import remove, sweep
from leftfold.errors import ContractError, Fenced, InfrastructureError, LeftfoldError
from leftfold.memory import MemoryViewStore, World
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, CommittedLog, OffsetRange
from leftfold.ports.flush import Generation, Phase
from tests.domains.ledger import LedgerEvent, Summary, by_owner, by_tag, summarise, summary
from tests.domains.ledger_world import VIEWS, each_view, folded, ledger_world, live, rebuild, rows_of, send


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


def stopping(work: Rebuild, after: int, error: BaseException) -> Rebuild:
    """The same rebuild, which fails once so many buckets are whole."""

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        results = (
            job.fold_streams((part for task in plan.tasks for part in task), tell)
            if plan.stream_keyed
            else job.fold_buckets(sorted(job.read_items((p for t in plan.tasks for p in t), tell)))
        )
        for _ in range(after):
            next(results)
        raise error

    work._run = run
    return work


def interrupt_rebuild(world: World, view: View[Any, Any] = summary, after: int = 2, **options: Any) -> Generation:
    """What a rebuild leaves that is interrupted once so many buckets are whole."""
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, view, **{"fold": "v1", **options}), after, KeyboardInterrupt()).run()
    return unfinished_generation(world, view)


def unfinished_generation(world: World, view: View[Any, Any]) -> Generation:
    """What a rebuild left behind."""
    (found,) = (g for g in world.store.registry(view.name).generations.values() if g.phase is Phase.BULK)
    return found


def read_by(work: Rebuild) -> list[OffsetRange]:
    """The ranges that a rebuild reads, filled in while it runs."""
    found: list[OffsetRange] = []

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        found.extend(plan.ranges)
        return run_locally(job, plan, tell)

    work._run = run
    return found


@each_view
@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_rebuild_continues_after_its_finished_buckets(
    world: World, view: View[Any, Any], after: int
) -> None:
    before = live(world, view)
    with pytest.raises(KeyboardInterrupt) as caught:
        stopping(rebuild(world, view, fold="v1"), after, KeyboardInterrupt()).run()
    assert "what is done of it is kept" in str(getattr(caught.value, "__notes__", []))
    assert live(world, view) == before
    begun = unfinished_generation(world, view)
    assert len(world.store.finished(begun)) == after
    send(world, 6, 30)
    work = rebuild(world, view, fold="v1")
    ranges = read_by(work)
    result = work.run()
    assert (result.swapped, result.generation) == (True, begun.id)
    assert len(ranges) == (4 - after if view is summary else 4), "a partition whose bucket is whole is not read again"
    assert rows_of(world, view) == folded(world, view)


def is_wrong_after_continuing(world: World, view: View[Any, Any], after: int = 2) -> bool:
    """Whether readers see other rows than the log makes, once an interrupted rebuild was continued and swapped in."""
    interrupt_rebuild(world, view, after)
    send(world, 6, 30)
    assert rebuild(world, view, fold="v1", swap_anyway=True).run().swapped
    return rows_of(world, view) != folded(world, view)


def test_twin_a_bucket_that_is_taken_for_whole_because_it_has_rows_lacks_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, generation: Generation, bucket: int, columns: Any, indexes: Any, rows: Any) -> int:
        write(self, generation, bucket, columns, indexes, list(rows)[:1])
        raise KeyboardInterrupt

    write = MemoryViewStore.write
    monkeypatch.setattr(MemoryViewStore, "finished", buckets_with_rows)
    monkeypatch.setattr(MemoryViewStore, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rebuild(world, summary, fold="v1").run()
    monkeypatch.setattr(MemoryViewStore, "write", write)
    assert unfinished_generation(world, summary).phase is Phase.BULK
    assert rebuild(world, summary, fold="v1", swap_anyway=True).run().swapped
    assert rows_of(world, summary) != folded(world, summary)


def buckets_with_rows(store: MemoryViewStore, generation: Generation) -> dict[int, BucketResult]:
    """Takes a bucket for whole when there is something in it."""
    counts = {number: len(store.keys(generation, number, "", 9_999)) for number in range(generation.buckets)}
    return {number: BucketResult(number, 0, count) for number, count in counts.items() if count}


@each_view
def test_twin_buckets_that_end_elsewhere_than_the_others_lack_what_lies_between(
    world: World, view: View[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_the_end_of_now(plan: RebuildPlan, generation: Generation, store: Any) -> RebuildPlan:
        whole = store.finished(generation).keys() if generation.stream_keyed else frozenset[int]()
        tasks = (tuple(part for part in task if part.partition not in whole) for task in plan.tasks)
        return replace(plan, tasks=tuple(task for task in tasks if task), buckets=generation.buckets)

    monkeypatch.setattr(rebuilding, "resumed", to_the_end_of_now)
    assert is_wrong_after_continuing(world, view)


def test_twin_a_seal_that_does_not_say_where_it_stands_folds_everything_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = rebuilding.sealed_marks

    def anywhere(generation: Generation, ends: Position, results: Any) -> Any:
        return {b: replace(m, position=Position()) for b, m in marks(generation, ends, results).items()}

    monkeypatch.setattr(rebuilding, "sealed_marks", anywhere)
    assert is_wrong_after_continuing(world, by_owner)


@each_view
def test_a_rebuild_with_other_code_begins_again(world: World, view: View[Any, Any]) -> None:
    begun = interrupt_rebuild(world, view)
    assert rebuild(world, view, fold="v2").run().generation != begun.id
    assert begun.id not in world.store.registry(view.name).generations, "and what nobody goes on with is removed"


@pytest.mark.parametrize("options", [{"fold": "v1", "fresh": True}, {"fold": ""}], ids=str)
def test_a_rebuild_begins_again_on_request_or_when_its_code_is_unknown(world: World, options: dict[str, Any]) -> None:
    begun = interrupt_rebuild(world)
    assert rebuild(world, summary, **options).run().generation != begun.id


def test_a_lost_server_leaves_a_rebuild_to_continue_and_a_broken_fold_does_not(world: World) -> None:
    with pytest.raises(InfrastructureError):
        stopping(rebuild(world, summary, fold="v1"), 2, InfrastructureError("gone")).run()
    begun = unfinished_generation(world, summary)
    with pytest.raises(ContractError):
        stopping(rebuild(world, summary, fold="v1"), 1, ContractError("a broken fold")).run()
    assert begun.id not in world.store.registry(summary.name).generations


def test_a_rebuild_without_a_finished_bucket_leaves_nothing(world: World) -> None:
    before = world.store.registry(summary.name)
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, summary, fold="v1"), 0, KeyboardInterrupt()).run()
    assert world.store.registry(summary.name) == before


def test_a_rebuild_that_was_interrupted_after_the_seal_only_swaps(world: World) -> None:
    work = rebuild(world, summary, fold="v1")
    ends = work._stable_ends

    def interrupt(plan: RebuildPlan) -> Any:
        raise KeyboardInterrupt

    work._stable_ends = interrupt  # type: ignore[method-assign]  # the first thing behind the seal
    with pytest.raises(KeyboardInterrupt):
        work.run()
    work._stable_ends = ends  # type: ignore[method-assign]
    ranges = read_by(work)
    assert work.run().swapped
    assert ranges == []


def test_a_pinned_rebuild_continues_under_its_name(world: World) -> None:
    begun = interrupt_rebuild(world, pin="then")
    assert rebuild(world, summary, fold="v1", pin="then").run().generation == begun.id
    rows = dict(world.views.as_of(summary, "then").items())
    assert rows == rows_of(world, summary)


GROUP = names.rebuilds(summary.name)
Fail = Callable[[BaseException], None]


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
    """It was paused while it planned."""
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
