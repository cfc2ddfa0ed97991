"""A rebuild that is killed at its seal: the next one continues as the checkpoints say, which are sealed first.

A kill at any write before that is shown in tests/redis/test_killed_rebuilds.py, of executors in tests/spark/cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import Fenced, InfrastructureError
from leftfold.memory import World
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.ports.protocols import ViewStore
from tests.domains.ledger import by_owner
from tests.domains.ledger_world import rebuild, rows_of


def killed(world: World, sealed: int, monkeypatch: pytest.MonkeyPatch) -> Generation:
    """What a rebuild leaves that is killed behind the seal of so many buckets, and before the registry has it."""
    store, held = world.store, dict[str, Any]()
    seal = store.seal

    def die(generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        seal(generation, dict(list(checkpoints.items())[:sealed]))
        held.update(deepcopy({"_buckets": store._buckets, "_registries": store._registries}))
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(store, "seal", die)
        with pytest.raises(KeyboardInterrupt):
            rebuild(world, by_owner, fold="v1").run()
    vars(store).update(held)  # what is killed cleans nothing up
    (left,) = (g for g in store.registry(by_owner.name).generations.values() if g.phase is Phase.BULK)
    return left


@pytest.mark.parametrize(("sealed", "continues"), [(99, True), (1, False)], ids=["behind the seal", "in the midst"])
def test_the_next_rebuild_continues_behind_a_whole_seal_and_begins_again_behind_a_part_of_one(
    world: World, sealed: int, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(world, sealed, monkeypatch)
    result = rebuild(world, by_owner, fold="v1").run()
    assert (result.agreement, result.swapped) == (Agreement.EQUAL, True)
    assert (result.generation == left.id) is continues
    assert dict(world.views[by_owner].items()) == rows_of(world, by_owner)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InfrastructureError("lost")], ids=["stopped", "lost server"])
def test_what_is_sealed_stays_where_a_rebuild_is_interrupted_before_the_registry_has_it(
    world: World, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = world.store.seal

    def interrupt(generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        seal(generation, checkpoints)
        raise error

    with monkeypatch.context() as interrupted:
        interrupted.setattr(world.store, "seal", interrupt)
        with pytest.raises(type(error)) as raised:
            rebuild(world, by_owner, fold="v1").run()
    assert "what is done of it is kept" in str(raised.value.__notes__)
    (left,) = (g for g in world.store.registry(by_owner.name).generations.values() if g.phase is Phase.BULK)
    result = rebuild(world, by_owner, fold="v1").run()
    assert (result.generation, result.swapped) == (left.id, True)
    assert dict(world.views[by_owner].items()) == rows_of(world, by_owner)


def test_twin_that_believes_the_registry_instead_of_the_checkpoints_cannot_continue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(world, 99, monkeypatch)

    def as_registered(store: ViewStore, generation: Generation) -> Generation:
        return generation

    with monkeypatch.context() as careless:
        careless.setattr("leftfold.engine.rebuild.rebuilder._as_it_is", as_registered)
        with pytest.raises(Fenced, match="is not being filled any more"):
            rebuild(world, by_owner, fold="v1").run()
    assert rebuild(world, by_owner, fold="v1").run().agreement is Agreement.EQUAL
