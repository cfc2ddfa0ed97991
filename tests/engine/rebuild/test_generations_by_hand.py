"""Holding a rebuild back, comparing it, promoting it, and going back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.engine.rebuild.rebuilder import Promotion, RebuildOptions
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.verify.row_differences import diff
from leftfold.engine.views.generations import resolve
from leftfold.errors import ConfigurationError, InfrastructureError, ViewNotBuilt
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from leftfold.testing import fold
from tests.engine.rebuild.test_rebuild_swap import live, rebuild
from tests.ledger import (
    LedgerEvent,
    Moved,
    Summary,
    Total,
    add,
    app,
    by_owner,
    by_tag,
    histories,
    stranger,
    summarise,
    summary,
)


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 80)))
        yield world


VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


def doubled(row: Summary | None, event: LedgerEvent) -> Summary | None:
    """The summary's fold, with a slip: every move counts twice."""
    after = summarise(row, event)
    return replace(after, moves=after.moves + 1) if after is not None and isinstance(event, Moved) else after


slip = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=doubled)


def promote(world: World, view: View[Any, Any], named: str) -> RebuildResult:
    return Promotion(
        view,
        world.store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        options=RebuildOptions(keep=600.0, patience=0.0),
    ).run(named)


def events(world: World) -> list[Any]:
    return [recorded.event for recorded in world.events("ledgers")]


def test_a_held_rebuild_is_seen_by_nobody_and_kept_up_to_date(world: World) -> None:
    rows, before = dict(world.views[summary].items()), live(world, summary)
    result = rebuild(world, slip, hold=True).run()
    assert (result.held, result.swapped, result.exit_code, result.agreement) == (True, False, 0, Agreement.DIFFERENT)
    assert f"leftfold promote {summary.name}" in str(result)
    assert live(world, summary) == before
    assert dict(world.views[summary].items()) == rows
    world.client.send_many(list(histories(stranger(6), 40)))
    held = resolve(world.store.registry(summary.name), summary, "held")
    assert diff(before, held, world.store).unsettled == 0, "the tail follows both"


def test_a_diff_counts_and_shows_what_a_changed_fold_changes(world: World) -> None:
    rebuild(world, slip, hold=True).run()
    registry = world.store.registry(summary.name)
    found = diff(live(world, summary), resolve(registry, summary, "held"), world.store, samples=3)
    moved = [row for row in world.views[summary].items() if row[1].moves]
    assert (found.different, found.only_one, found.only_other, found.unsettled) == (len(moved), 0, 0, 0)
    assert found.equal == len(dict(world.views[summary].items())) - len(moved)
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
        assert found.equal == len(dict(world.views[view].items()))


def test_promote_and_rollback_exchange_the_live_generation(world: World) -> None:
    rows, first = dict(world.views[summary].items()), live(world, summary)
    held = rebuild(world, slip, hold=True).run().generation
    promoted = promote(world, slip, "held")
    assert (promoted.swapped, promoted.generation, promoted.kept) == (True, held, first.id)
    assert dict(world.views[summary].items()) == fold(slip, *events(world))
    back = promote(world, summary, "kept")
    assert (back.generation, back.kept) == (first.id, held)
    assert dict(world.views[summary].items()) == rows
    assert promote(world, summary, "kept").generation == held, "a second one takes the first back"


def test_no_tail_is_needed_to_go_back(world: World) -> None:
    first, rows = live(world, summary), dict(world.views[summary].items())
    rebuild(world, summary, hold=True).run()
    promote(world, summary, "held")
    world._tail.close()
    assert promote(world, summary, first.id).agreement is Agreement.EQUAL
    assert (live(world, summary).id, dict(world.views[summary].items())) == (first.id, rows)


def test_only_what_is_held_or_kept_can_go_live(world: World) -> None:
    with pytest.raises(ViewNotBuilt, match=r"no generation 'held'; it has 1-\w+ \(live\)"):
        promote(world, summary, "held")
    with pytest.raises(ConfigurationError, match="is what readers see already"):
        promote(world, summary, live(world, summary).id)


def test_a_second_hold_takes_the_place_of_the_first_and_a_swap_leaves_it(world: World) -> None:
    one = rebuild(world, slip, hold=True).run().generation
    other = rebuild(world, slip, hold=True).run().generation
    assert one not in world.store.registry(summary.name).generations
    rebuild(world, summary).run()
    assert resolve(world.store.registry(summary.name), summary, "held").id == other


def test_a_view_as_of_a_place_stays_there(world: World) -> None:
    ends = world.log.reader().ends(["ledgers.events"])
    before: dict[View[Any, Any], dict[Any, Any]] = {view: dict(world.views[view].items()) for view in VIEWS}
    world.client.send_many(list(histories(stranger(9), 60)))
    for view, rows in before.items():
        work = rebuild(world, view, pin="then")
        assert work.run(work.plan(ends)).swapped
        world.client.send_many(list(histories(stranger(10), 5)))
        assert dict(world.views.as_of(view, "then").items()) == rows
        assert world.views.as_of(view, "then").describe().phase == "pinned"
        now = fold(view, *events(world))
        assert dict(world.views[view].items()) == now, "the live one goes on"


def test_a_place_inside_a_decision_is_moved_back_to_its_beginning(world: World) -> None:
    halves = 0
    for partition, records in enumerate(world.log.of("ledgers.events")):
        for record in records:
            k, n = dict(record.headers)["ce_decision"].split(b"/")
            plan = rebuild(world, summary).plan(Position.at("ledgers.events", partition, record.offset + 1))
            cut = plan.ends.next_offset("ledgers.events", partition)
            assert cut == (record.offset + 1 if k == n else record.offset - int(k) + 1)
            halves += k != n
    assert halves


def test_a_name_is_given_anew_and_the_old_rows_are_gone(world: World) -> None:
    first = rebuild(world, by_owner, pin="then").run().generation
    second = rebuild(world, by_owner, pin="then").run().generation
    assert first not in world.store.registry(by_owner.name).generations
    assert world.views.as_of(by_owner, "then").describe().generation == second
    assert not [place for place in world.store._buckets if place[1] == first]


def test_an_unknown_name_says_what_to_type(world: World) -> None:
    with pytest.raises(ViewNotBuilt, match="leftfold rebuild by_owner --as-of PLACE --name then"):
        world.views.as_of(by_owner, "then").get("o/1")


def test_two_pinned_generations_can_be_compared(world: World) -> None:
    ends = world.log.reader().ends(["ledgers.events"])
    work = rebuild(world, by_owner, pin="before")
    work.run(work.plan(ends))
    world.client.send(next(m for m in histories(stranger(3), 99) if type(m).__name__ == "Move"))
    rebuild(world, by_owner, pin="behind").run()
    registry = world.store.registry(by_owner.name)
    found = diff(resolve(registry, by_owner, "before"), resolve(registry, by_owner, "behind"), world.store)
    assert (found.different + found.only_other, found.only_one) == (1, 0)


def test_a_second_rebuild_of_a_view_is_refused_while_the_first_is_at_work(world: World) -> None:
    world.store.heartbeat([f"rebuilds:{summary.name}"], "elsewhere (process 7)", 60.0)
    with pytest.raises(InfrastructureError, match=r"is being rebuilt already by elsewhere \(process 7\)"):
        rebuild(world, summary).run()
    rebuild(world, by_owner).run()
    world.store.heartbeat([f"rebuilds:{summary.name}"], "elsewhere (process 7)", 0.0)
    rebuild(world, summary).run()


def test_phases_of_other_code_are_left_alone(world: World) -> None:
    other = FoldView(by_owner.name, events=Moved, row=Total, key=lambda e: e.owner, evolve=add, version=2)
    held = rebuild(world, by_owner, hold=True).run().generation
    rebuild(world, other).run()
    assert resolve(world.store.registry(by_owner.name), by_owner, "held").id == held
    assert resolve(world.store.registry(by_owner.name), other, "live").hash == other.hash
    with pytest.raises(ViewNotBuilt):
        resolve(world.store.registry(by_owner.name), other, "held")
