"""When a rebuilt generation may take the place of the live one, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import change, format_time, open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.subscription import SharedSubscription
from leftfold.errors import Fenced
from leftfold.memory import MemoryViewStore, World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, CommittedLog
from leftfold.ports.flush import BucketFlush, Generation, Parked, Phase, Registry, While, covered
from tests.domains.shop import household_spend
from tests.engine.fold_bench import FoldBench, out
from tests.ledger import LedgerEvent, Summary, app, by_owner, histories, stranger, summary

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=NOW) as world:
        world.client.send_many(list(histories(stranger(5), 80)))
        yield world


def rebuild(world: World | FoldBench, view: View[Any, Any], **options: Any) -> Rebuild:
    return Rebuild(
        view,
        world.store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=lambda: world.store,
        options=RebuildOptions(**{"keep": 0, "patience": 0.0, **options}),
    )


def live(world: World, view: View[Any, Any]) -> Generation:
    found = world.store.registry(view.name).live_of(view.hash)
    assert found is not None
    return found


def ids(world: World, view: View[Any, Any]) -> set[str]:
    return set(world.store.registry(view.name).generations)


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_a_live_generation_that_lost_a_mark_is_replaced_without_being_asked(world: World, view: Any) -> None:
    rows, old = dict(world.views[view].items()), live(world, view)
    del world.store._buckets[view.name, old.id, 1]
    result = rebuild(world, view).run()
    assert (result.agreement, result.swapped) == (Agreement.ALONE, True)
    assert dict(world.views[view].items()) == rows
    assert ids(world, view) == {result.generation}


def test_a_live_generation_that_cannot_go_on_is_replaced_without_being_compared(world: World) -> None:
    old = live(world, summary)
    checkpoint = world.store.checkpoints(old)[0]
    parked = {f"p{n}": Parked("ledgers.events", 0, n, "ValueError: no") for n in range(101)}
    behind = replace(checkpoint, position=Position(), parked=parked, token="stuck")
    assert world.store.flush([BucketFlush(old, 0, checkpoint.token, behind, (), ())])
    result = rebuild(world, summary).run()
    assert (result.agreement, result.swapped) == (Agreement.UNKNOWN, True)
    assert "does not move on" in result.why


def test_rows_that_differ_are_not_swapped_in_and_not_left_behind(world: World) -> None:
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
    bench.write(out("b1", "h1", tea=1))
    bench.settle()
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


def test_a_fold_that_digests_less_than_before_does_not_go_live(world: World) -> None:
    rows, old = dict(world.views[summary].items()), live(world, summary)
    broken = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=never)
    result = rebuild(world, broken).run()
    assert (result.agreement, result.swapped, result.exit_code) == (Agreement.WORSE, False, 3)
    assert "ValueError: a slip in this version" in str(result)
    assert f"readers still see {old.id}" in str(result)
    assert dict(world.views[summary].items()) == rows
    assert rebuild(world, broken, swap_anyway=True).run().swapped
    assert rebuild(world, summary).run().swapped, "a mended fold parks less, and goes live unasked"
    assert dict(world.views[summary].items()) == rows


def test_what_is_replaced_stays_for_a_while_and_goes_at_a_later_rebuild(world: World) -> None:
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


def test_events_written_during_the_rebuild_are_in_it_before_it_is_live(world: World) -> None:
    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        world.client.send_many(list(histories(stranger(6), 50)))
        return run_locally(job, plan, tell)

    slow = rebuild(world, summary)
    slow._run = run
    result = slow.run()
    assert result.agreement is Agreement.EQUAL
    ends = world.log.reader().ends(["ledgers.events"])
    assert world.views[summary].describe().position.covers(ends)
    assert world.views[summary].describe().generation == result.generation


def test_a_generation_that_somebody_removed_is_never_live(world: World) -> None:
    before = live(world, summary)

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        results = run_locally(job, plan, tell)
        remove(world.store, job.generation)
        return results

    fenced = rebuild(world, summary)
    fenced._run = run
    with pytest.raises(Fenced):
        fenced.run()
    assert world.store.registry(summary.name).live_of(summary.hash) == before
    assert ids(world, summary) == {before.id}


def test_a_generation_that_a_tail_began_meanwhile_goes_when_the_rebuilt_one_is_live(world: World) -> None:
    change(world.store, summary.name, lambda registry: registry.without(live(world, summary).id))

    def run(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        open_generation(world.store, summary, plan.topics, Phase.SEALED)
        return run_locally(job, plan, tell)

    alone = rebuild(world, summary)
    alone._run = run
    result = alone.run()
    assert (result.agreement, result.swapped) == (Agreement.ALONE, True)
    assert ids(world, summary) == {result.generation}


def test_a_bulk_load_that_lost_its_process_goes_with_the_next_rebuild(world: World) -> None:
    topics = live(world, summary).topics
    dead = open_generation(world.store, summary, topics, Phase.BULK)
    rebuild(world, summary).run()
    assert dead.id not in ids(world, summary)
