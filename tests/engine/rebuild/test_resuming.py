"""A rebuild that was interrupted continues where it was; each twin lacks one of the things that make it so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leftfold.engine.rebuild import rebuilder as rebuilding
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild
from leftfold.engine.rebuild.tasks import BulkJob, BulkPass, ProgressCallback, run_locally
from leftfold.errors import ContractError, InfrastructureError
from leftfold.memory import MemoryViewStore, World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, OffsetRange
from leftfold.ports.flush import Generation, Phase
from tests.domains.ledger import by_owner, summary
from tests.domains.ledger_world import each_view, folded, live, rebuild, rows_of, send


def stopping(work: Rebuild, after: int, error: BaseException) -> Rebuild:
    """The same rebuild, which fails once so many buckets are whole."""

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        parts = [part for task in plan.tasks for part in task]
        results = (
            job.fold_streams(parts, tell)
            if plan.stream_keyed
            else job.fold_buckets(sorted(item for read in BulkPass((job,)).read(parts, tell) for item in read.items))
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
@pytest.mark.parametrize("options", [{"fold": "v2"}, {"fold": "v1", "fresh": True}, {"fold": ""}], ids=str)
def test_a_rebuild_with_other_or_unknown_code_or_on_request_begins_again(
    world: World, view: View[Any, Any], options: dict[str, Any]
) -> None:
    begun = interrupt_rebuild(world, view)
    assert rebuild(world, view, **options).run().generation != begun.id
    assert begun.id not in world.store.registry(view.name).generations, "and what is not continued is removed"


def test_a_lost_server_leaves_a_rebuild_to_continue_and_a_broken_fold_does_not(world: World) -> None:
    with pytest.raises(InfrastructureError):
        stopping(rebuild(world, summary, fold="v1"), 2, InfrastructureError("lost")).run()
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


def test_a_pinned_rebuild_of_another_place_does_not_continue_the_first(world: World) -> None:
    """What was begun stays where its plan ends, and that is not what was asked for now."""
    ends = world.log.reader().ends(["ledgers.events"])
    begun = interrupt_rebuild(world, pin="then")
    half = Position({topic: {p: end // 2 for p, end in found.items()} for topic, found in ends.offsets.items()})
    work = rebuild(world, summary, fold="v1", pin="then")
    plan = work.plan(half)
    result = work.run(plan)
    assert result.generation != begun.id
    assert begun.id not in world.store.registry(summary.name).generations
    assert world.views.as_of(summary, "then").describe().position == plan.ends


def test_a_pinned_rebuild_continues_under_its_name(world: World) -> None:
    begun = interrupt_rebuild(world, pin="then")
    assert rebuild(world, summary, fold="v1", pin="then").run().generation == begun.id
    rows = dict(world.views.as_of(summary, "then").items())
    assert rows == rows_of(world, summary)
