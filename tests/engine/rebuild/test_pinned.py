"""Views as of a position: generations that are pinned under a name, and stay where they are."""

from __future__ import annotations

from typing import Any

import pytest

from leftfold.engine.verify.row_differences import diff
from leftfold.engine.views.generations import resolve
from leftfold.errors import ViewNotBuilt
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.model.view import View
from tests.domains.ledger import (
    by_owner,
    histories,
    stranger,
    summary,
)
from tests.domains.ledger_world import VIEWS, folded, rebuild, rows_of, send


def test_a_view_as_of_a_position_stays_there(world: World) -> None:
    ends = world.log.reader().ends(["ledgers.events"])
    before: dict[View[Any, Any], dict[Any, Any]] = {view: rows_of(world, view) for view in VIEWS}
    send(world, 9, 60)
    for view, rows in before.items():
        work = rebuild(world, view, pin="then")
        assert work.run(work.plan(ends)).swapped
        send(world, 10, 5)
        assert dict(world.views.as_of(view, "then").items()) == rows
        assert world.views.as_of(view, "then").describe().phase == "pinned"
        now = folded(world, view)
        assert rows_of(world, view) == now, "the live one continues"


def test_a_position_inside_a_decision_is_moved_back_to_its_beginning(world: World) -> None:
    halves = 0
    for partition, records in enumerate(world.log.of("ledgers.events")):
        for record in records:
            k, n = dict(record.headers)["ce_decision"].split(b"/")
            plan = rebuild(world, summary).plan(Position.at("ledgers.events", partition, record.offset + 1))
            cut = plan.ends.next_offset("ledgers.events", partition)
            assert cut == (record.offset + 1 if k == n else record.offset - int(k) + 1)
            halves += k != n
    assert halves


def test_a_pinned_name_moves_to_the_latest_rebuild(world: World) -> None:
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
