"""Generations that are held, compared, promoted and rolled back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.rebuild.rebuilder import Rebuild, rebuild_together
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.verify.row_differences import diff
from leftfold.engine.views.generations import change, promote_first, resolve
from leftfold.errors import ConfigurationError, ContractError, InfrastructureError, ViewNotBuilt
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.flush import Phase, Registry, While
from tests.domains.ledger import LedgerEvent, Moved, Summary, Total, add, by_owner, summarise, summary
from tests.domains.ledger_world import VIEWS, folded, live, promotion, rebuild, rows_of, send


def doubled(row: Summary | None, event: LedgerEvent) -> Summary | None:
    """The summary's fold, with a slip: every move counts twice."""
    after = summarise(row, event)
    return replace(after, moves=after.moves + 1) if after is not None and isinstance(event, Moved) else after


slip = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=doubled)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leftfold.engine.verify.row_differences._PATIENCE", 240.0)


def promote(world: World, view: View[Any, Any], named: str) -> RebuildResult:
    return promotion(world, view).run(named)


def test_a_held_rebuild_is_not_live_and_kept_up_to_date(world: World) -> None:
    rows, before = rows_of(world, summary), live(world, summary)
    result = rebuild(world, slip, hold=True).run()
    assert (result.held, result.swapped, result.exit_code, result.agreement) == (True, False, 0, Agreement.DIFFERENT)
    assert f"leftfold promote {summary.name}" in str(result)
    assert live(world, summary) == before
    assert rows_of(world, summary) == rows
    send(world, 6, 40)
    held = resolve(world.store.registry(summary.name), summary, "held")
    assert diff(before, held, world.store).unsettled == 0, "the projector follows both"


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("when", ["before it is compared", "after it was compared"])
def test_a_generation_that_a_projector_makes_live_is_live(
    world: World, hold: bool, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not held, since the next one that is held would replace what readers see."""
    change(world.store, summary.name, lambda registry: registry.without(live(world, summary).id))
    where, name = (Rebuild, "seal") if when.startswith("before") else (Swap, "_compare")
    work, whole = rebuild(world, summary, hold=hold, keep=0.0), getattr(where, name)

    def then(self: Any, *more: Any) -> Any:
        found = whole(self, *more)
        (generation,) = world.store.registry(summary.name).generations.values()
        promote_first(world.store, generation)
        return found

    monkeypatch.setattr(where, name, then)
    result = work.run()
    monkeypatch.undo()
    assert (result.held, result.swapped, live(world, summary).id) == (False, True, result.generation)
    rebuild(world, slip, hold=True).run()
    assert live(world, summary).id == result.generation


def test_a_diff_counts_and_shows_what_a_changed_fold_changes(world: World) -> None:
    rebuild(world, slip, hold=True).run()
    registry = world.store.registry(summary.name)
    found = diff(live(world, summary), resolve(registry, summary, "held"), world.store, samples=3)
    moved = [row for row in world.views[summary].items() if row[1].moves]
    assert (found.different, found.only_one, found.only_other, found.unsettled) == (len(moved), 0, 0, 0)
    assert found.equal == len(rows_of(world, summary)) - len(moved)
    assert len(found.samples) == 3
    for row in found.samples:
        assert row.fields == ("moves",)
        assert row.one is not None
        assert row.other is not None
        assert int(row.other["moves"]) > int(row.one["moves"])


def test_a_diff_sees_rows_that_only_one_has(world: World) -> None:
    rebuild(world, summary, hold=True).run()
    registry = world.store.registry(summary.name)
    held = resolve(registry, summary, "held")
    bucket = next(number for number in range(held.buckets) if world.store.keys(held, number, "", 1))
    (key,) = world.store.keys(held, bucket, "", 1)
    rows = world.store._buckets[held.view, held.id, bucket].rows
    rows["stray"] = rows.pop(key)
    found = diff(live(world, summary), held, world.store)
    assert (found.only_one, found.only_other, found.same) == (1, 1, False)
    assert {row.key for row in found.samples} == {key, "stray"}


def test_equal_generations_have_no_difference(world: World) -> None:
    for view in VIEWS:
        rebuild(world, view, hold=True).run()
        held = resolve(world.store.registry(view.name), view, "held")
        found = diff(live(world, view), held, world.store)
        assert found.same
        assert found.equal == len(rows_of(world, view))


def test_promote_and_rollback_exchange_the_live_generation(world: World) -> None:
    rows, first = rows_of(world, summary), live(world, summary)
    held = rebuild(world, slip, hold=True).run().generation
    promoted = promote(world, slip, "held")
    assert (promoted.swapped, promoted.generation, promoted.kept) == (True, held, first.id)
    assert rows_of(world, summary) == folded(world, slip)
    back = promote(world, summary, "kept")
    assert (back.generation, back.kept) == (first.id, held)
    assert rows_of(world, summary) == rows
    assert promote(world, summary, "kept").generation == held, "a second one takes the first back"


def test_a_rollback_that_two_operators_have_confirmed_is_done_once(world: World) -> None:
    """Without the id that was confirmed, the second one takes the first back."""
    first = live(world, summary)
    rebuild(world, slip, hold=True).run()
    promote(world, slip, "held")
    confirmed = promotion(world, summary).meant("kept").id
    assert promotion(world, summary).run("kept", confirmed).generation == first.id == confirmed
    with pytest.raises(ConfigurationError, match=f"and {confirmed} was confirmed; nothing was changed"):
        promotion(world, summary).run("kept", confirmed)
    assert live(world, summary).id == first.id


def test_a_rollback_needs_no_projector(world: World) -> None:
    first, rows = live(world, summary), rows_of(world, summary)
    rebuild(world, summary, hold=True).run()
    promote(world, summary, "held")
    world._projector.close()
    assert promote(world, summary, first.id).agreement is Agreement.EQUAL
    assert (live(world, summary).id, rows_of(world, summary)) == (first.id, rows)


def test_only_what_is_held_or_kept_can_go_live(world: World) -> None:
    with pytest.raises(ViewNotBuilt, match=r"no generation 'held'; it has 1-\w+ \(live\)"):
        promote(world, summary, "held")
    with pytest.raises(ConfigurationError, match="is what readers see already"):
        promote(world, summary, live(world, summary).id)


def test_a_second_hold_replaces_the_first_and_a_swap_leaves_it(world: World) -> None:
    one = rebuild(world, slip, hold=True).run().generation
    other = rebuild(world, slip, hold=True).run().generation
    assert one not in world.store.registry(summary.name).generations
    rebuild(world, summary).run()
    assert resolve(world.store.registry(summary.name), summary, "held").id == other


def fail_to_hold(world: World, view: View[Any, Any], error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the store raise an error when one more generation of a view is held."""
    store, change_registry = world.store, world.store.change_registry

    def held(registry: Registry) -> set[str]:
        return {generation.id for generation in registry.generations.values() if generation.phase is Phase.HELD}

    def failing(name: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        if name == view.name and held(after) - held(before):
            raise error
        return change_registry(name, before, after, while_)

    monkeypatch.setattr(store, "change_registry", failing)


@pytest.mark.parametrize("error", [ContractError("a view stops"), InfrastructureError("a server is lost")], ids=repr)
def test_a_held_generation_stays_when_another_view_of_the_rebuild_fails(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_hold(world, by_owner, error, monkeypatch)
    rebuilds = [rebuild(world, view, hold=True, fold="v1") for view in (summary, by_owner)]
    with pytest.raises(type(error)):
        rebuild_together(rebuilds, rebuilds[0].plan())
    held = resolve(world.store.registry(summary.name), summary, "held")
    assert diff(live(world, summary), held, world.store).same


def test_a_hold_that_fails_leaves_the_generation_held_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rebuild(world, slip, hold=True).run().generation
    fail_to_hold(world, summary, InfrastructureError("a server is lost"), monkeypatch)
    with pytest.raises(InfrastructureError, match="a server is lost"):
        rebuild(world, summary, hold=True).run()
    assert resolve(world.store.registry(summary.name), summary, "held").id == before


def test_a_promotion_removes_what_a_failed_hold_has_left_and_a_rollback_removes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, store = live(world, summary), world.store
    older, change_registry = rebuild(world, slip, hold=True).run().generation, store.change_registry

    def failing(name: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        if before.generations.keys() - after.generations.keys() == {older}:
            raise InfrastructureError("a server is lost")
        return change_registry(name, before, after, while_)

    with monkeypatch.context() as fails:
        fails.setattr(store, "change_registry", failing)
        with pytest.raises(InfrastructureError, match="a server is lost"):
            rebuild(world, slip, hold=True).run()
    newer = resolve(store.registry(summary.name), summary, "held").id
    assert set(store.registry(summary.name).generations) == {first.id, older, newer}
    promote(world, slip, "held")
    assert set(store.registry(summary.name).generations) == {first.id, newer}
    waiting = rebuild(world, slip, hold=True).run().generation
    promote(world, summary, "kept")
    assert set(store.registry(summary.name).generations) == {first.id, newer, waiting}


def test_a_second_rebuild_of_a_view_is_refused_while_the_first_is_at_work(world: World) -> None:
    world.store.heartbeat([f"rebuilds:{summary.name}"], "elsewhere (process 7)", 60.0)
    with pytest.raises(InfrastructureError, match=r"is being rebuilt already by elsewhere \(process 7\)"):
        rebuild(world, summary).run()
    rebuild(world, by_owner).run()
    world.store.heartbeat([f"rebuilds:{summary.name}"], "elsewhere (process 7)", 0.0)
    rebuild(world, summary).run()


def test_generations_of_other_code_keep_their_phases(world: World) -> None:
    other = FoldView(by_owner.name, events=Moved, row=Total, key=lambda e: e.owner, evolve=add, version=2)
    held = rebuild(world, by_owner, hold=True).run().generation
    rebuild(world, other).run()
    assert resolve(world.store.registry(by_owner.name), by_owner, "held").id == held
    assert resolve(world.store.registry(by_owner.name), other, "live").hash == other.hash
    with pytest.raises(ViewNotBuilt):
        resolve(world.store.registry(by_owner.name), other, "held")
