"""Live generations with lost or unreadable checkpoints: readers keep them until another generation is live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leftfold.client import Views
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.generations import resolve
from leftfold.errors import ContractError, InfrastructureError
from leftfold.memory import MemoryLog, MemoryViewStore, World
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, While
from tests.domains.ledger import by_owner, summary
from tests.domains.ledger_world import folded, live, rebuild, rows_of
from tests.engine.views.test_cut_topics import Count, counts, refresh_of

Spoil = Callable[[MemoryViewStore, Generation, pytest.MonkeyPatch], None]


def lose(store: MemoryViewStore, old: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    del store._buckets[old.view, old.id, 0]


def make_unreadable(store: MemoryViewStore, old: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer code may have written one of a phase that this code does not know."""
    whole = store.checkpoints

    def checkpoints(generation: Generation) -> dict[int, Checkpoint]:
        if generation.id == old.id:
            raise ContractError("the checkpoint is unreadable")
        return whole(generation)

    monkeypatch.setattr(store, "checkpoints", checkpoints)


SPOILT = pytest.mark.parametrize("spoil", [lose, make_unreadable])


@SPOILT
@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_a_rebuild_replaces_a_live_generation_that_it_cannot_compare(
    world: World, view: Any, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = live(world, view)
    spoil(world.store, old, monkeypatch)
    result = rebuild(world, view, keep=600.0).run()
    assert (result.agreement, result.swapped, result.predecessor) == (Agreement.UNKNOWN, True, old.id)
    assert f"not compared (checkpoints of {old.id} are lost or unreadable)" in str(result)
    assert world.store.registry(view.name).generations[old.id].phase is Phase.KEPT
    assert rows_of(world, view) == folded(world, view)


@SPOILT
def test_a_rebuild_that_is_held_leaves_a_live_generation_that_it_cannot_compare(
    world: World, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = live(world, summary)
    world._projector.close()  # which removes what has lost a checkpoint
    spoil(world.store, old, monkeypatch)
    result = rebuild(world, summary, hold=True).run()
    assert (result.held, result.swapped, result.agreement) == (True, False, Agreement.UNKNOWN)
    assert live(world, summary) == old
    assert resolve(world.store.registry(summary.name), summary, "held").id == result.generation


@SPOILT
def test_a_rebuild_that_fails_leaves_a_live_generation_that_it_cannot_compare(
    world: World, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, change_registry = live(world, summary), world.store.change_registry
    world._projector.close()
    spoil(world.store, old, monkeypatch)

    def failing(name: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        if not set(after.live.values()) <= set(before.live.values()):
            raise InfrastructureError("a server is lost")
        return change_registry(name, before, after, while_)

    monkeypatch.setattr(world.store, "change_registry", failing)
    with pytest.raises(InfrastructureError, match="a server is lost"):
        rebuild(world, summary).run()
    assert live(world, summary) == old


@SPOILT
def test_a_refresh_replaces_a_live_generation_that_it_cannot_compare(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, store = MemoryLog(), MemoryViewStore()
    log.create("ledgers.events", 1)
    log.append("ledgers.events", 0, b"k", b"0", [("ce_decision", b"1/1")])
    first = refresh_of(log, store).run()
    again = refresh_of(log, store)
    assert again.stands_at(again.plan())
    old = store.registry(counts.name).generations[first.generation]
    spoil(store, old, monkeypatch)
    assert not again.stands_at(again.plan())
    with monkeypatch.context() as failing:
        failing.setattr(Refresh, "_point", lost)
        with pytest.raises(InfrastructureError, match="a server is lost"):
            refresh_of(log, store).run()
    assert store.registry(counts.name).live_of(counts.hash) == old
    result = again.run()
    assert (result.swapped, result.agreement, result.predecessor) == (True, Agreement.UNKNOWN, old.id)
    assert result.why == f"checkpoints of {old.id} are lost or unreadable"
    assert Views(store)[counts].get("all") == Count("all", 1)


def lost(*more: object) -> None:
    raise InfrastructureError("a server is lost")
