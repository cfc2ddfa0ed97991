"""A rebuild that is interrupted leaves what it has done, and the next one of the same code goes on there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.errors import ContractError, InfrastructureError
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, OffsetRange
from leftfold.ports.flush import Generation, Phase
from leftfold.testing import fold
from tests.engine.rebuild.test_rebuild_swap import live, rebuild
from tests.ledger import app, by_owner, by_tag, histories, stranger, summary

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
named = pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 120)))
        yield world


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


def left(world: World, view: View[Any, Any]) -> Generation:
    """What an interrupted rebuild left."""
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


@named
@pytest.mark.parametrize("after", [1, 3])
def test_it_goes_on_behind_the_buckets_that_are_whole(world: World, view: View[Any, Any], after: int) -> None:
    before = live(world, view)
    with pytest.raises(KeyboardInterrupt) as caught:
        stopping(rebuild(world, view, fold="v1"), after, KeyboardInterrupt()).run()
    assert "what is done of it is kept" in str(getattr(caught.value, "__notes__", []))
    assert live(world, view) == before
    begun = left(world, view)
    assert len(world.store.finished(begun)) == after
    world.client.send_many(list(histories(stranger(6), 30)))
    work = rebuild(world, view, fold="v1")
    ranges = read_by(work)
    result = work.run()
    assert (result.swapped, result.generation) == (True, begun.id)
    assert len(ranges) == (4 - after if view is summary else 4), "a partition whose bucket is whole is not read again"
    assert dict(world.views[view].items()) == fold(view, *(r.event for r in world.events("ledgers")))


@named
def test_other_code_begins_anew(world: World, view: View[Any, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, view, fold="v1"), 2, KeyboardInterrupt()).run()
    begun = left(world, view)
    assert rebuild(world, view, fold="v2").run().generation != begun.id
    assert begun.id not in world.store.registry(view.name).generations, "and what nobody goes on with is removed"


@pytest.mark.parametrize("options", [{"fold": "v1", "fresh": True}, {"fold": ""}], ids=str)
def test_it_begins_anew_when_told_or_when_nobody_knows_the_code(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, summary, fold="v1"), 2, KeyboardInterrupt()).run()
    begun = left(world, summary)
    assert rebuild(world, summary, **options).run().generation != begun.id


def test_a_lost_server_leaves_it_and_a_broken_fold_does_not(world: World) -> None:
    with pytest.raises(InfrastructureError):
        stopping(rebuild(world, summary, fold="v1"), 2, InfrastructureError("gone")).run()
    begun = left(world, summary)
    with pytest.raises(ContractError):
        stopping(rebuild(world, summary, fold="v1"), 1, ContractError("a broken fold")).run()
    assert begun.id not in world.store.registry(summary.name).generations


def test_nothing_is_left_when_nothing_was_whole(world: World) -> None:
    before = world.store.registry(summary.name)
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, summary, fold="v1"), 0, KeyboardInterrupt()).run()
    assert world.store.registry(summary.name) == before


def test_interrupted_between_the_seal_and_the_swap_it_only_swaps(world: World) -> None:
    work = rebuild(world, summary, fold="v1")
    ends = work._stable_ends

    def interrupted(plan: RebuildPlan) -> Any:
        raise KeyboardInterrupt

    work._stable_ends = interrupted  # type: ignore[method-assign]  # the first thing behind the seal
    with pytest.raises(KeyboardInterrupt):
        work.run()
    work._stable_ends = ends  # type: ignore[method-assign]
    ranges = read_by(work)
    assert work.run().swapped
    assert ranges == []


def test_a_pinned_one_goes_on_only_under_its_name(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping(rebuild(world, summary, fold="v1", pin="then"), 2, KeyboardInterrupt()).run()
    begun = left(world, summary)
    assert rebuild(world, summary, fold="v1", pin="then").run().generation == begun.id
    rows = dict(world.views.as_of(summary, "then").items())
    assert rows == dict(world.views[summary].items())
