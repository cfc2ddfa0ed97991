"""A rebuild that was paused until it counted as dead, and wakes beside its successor, harms nothing of that one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.rebuild import rebuilder as rebuilding
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, StartedRebuild, unfinished
from leftfold.engine.views.cleanup import remove, sweep
from leftfold.errors import ContractError, Fenced, InfrastructureError, LeftfoldError
from leftfold.memory import World
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.flush import Generation, Phase
from leftfold.redis.stored_values import decoded
from leftfold.testing import fold
from tests.engine.rebuild.test_rebuild_swap import live, rebuild
from tests.ledger import app, by_owner, histories, stranger, summary

GROUP = names.rebuilds(summary.name)


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 60)))
        yield world


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is begun in a test ends in it, however."""
    with ExitStack() as stack:
        yield stack


def pause(world: World) -> None:
    """Lets the time of every rebuild at work run out."""
    for member in world.store.heartbeat([GROUP], "", 0.0)[GROUP]:
        world.store.heartbeat([GROUP], member, 0.0)


def paused(world: World, stack: ExitStack, **options: Any) -> tuple[StartedRebuild, Callable[[BaseException], None]]:
    """A rebuild that has begun and counts as dead; and what makes it fail with an error."""
    context = rebuild(world, summary, **{"fold": "v1", **options}).begun()
    begun = context.__enter__()
    pause(world)

    def fail(error: BaseException) -> None:
        assert not context.__exit__(type(error), error, None), "it is raised again"

    stack.callback(lambda: context.__exit__(None, None, None))
    return begun, fail


def ended(world: World, work: Rebuild, begun: StartedRebuild) -> None:
    """The successor comes to its end, and readers see what the log makes."""
    work.fold(begun)
    assert work.swap(begun).swapped
    assert live(world, summary).id == begun.generation.id
    assert dict(world.views[summary].items()) == fold(summary, *(r.event for r in world.events("ledgers")))


@pytest.mark.parametrize("error", [ContractError("no"), InfrastructureError("no"), Fenced("no"), KeyboardInterrupt()])
def test_what_its_successor_goes_on_filling_stays_when_it_fails(
    world: World, stack: ExitStack, error: BaseException
) -> None:
    woken, fail = paused(world, stack)
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    assert begun.generation.id == woken.generation.id, "it continues where the paused one was"
    fail(error)
    ended(world, work, begun)


def test_twin_without_a_claim_it_removes_what_its_successor_fills(
    world: World, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unclaimed(store: Any, generation: Generation, attempt: str) -> Generation:
        return generation

    monkeypatch.setattr(rebuilding, "take_over", unclaimed)
    _, fail = paused(world, stack)
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    fail(ContractError("no"))
    with pytest.raises(LeftfoldError):
        ended(world, work, begun)


@pytest.mark.parametrize("options", [{}, {"hold": True}, {"pin": "then"}], ids=str)
def test_it_neither_seals_nor_shows_what_its_successor_fills(
    world: World, stack: ExitStack, options: dict[str, Any]
) -> None:
    woken, _ = paused(world, stack, **options)
    work = rebuild(world, summary, fold="v1", **options)
    begun = stack.enter_context(work.begun())
    with pytest.raises(Fenced, match=r"was taken over by .*process"):
        woken.rebuild.fold(woken)
    work.fold(begun)
    with pytest.raises(Fenced, match="was taken over by"):
        woken.rebuild.swap(woken)
    work.swap(begun)
    assert world.store.registry(summary.name).generations[begun.generation.id].phase is not Phase.BULK


def test_what_a_rebuild_at_work_fills_is_neither_swept_nor_gone_on_with(world: World, stack: ExitStack) -> None:
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


def test_one_that_wakes_before_it_has_begun_a_generation_begins_none(world: World, stack: ExitStack) -> None:
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
    ended(world, successor, begun[0])


def test_a_removal_that_was_decided_before_leaves_what_was_claimed_since(world: World, stack: ExitStack) -> None:
    woken, _ = paused(world, stack)
    seen = world.store.registry(summary.name).generations[woken.generation.id]
    work = rebuild(world, summary, fold="v1")
    begun = stack.enter_context(work.begun())
    after = world.store.registry(summary.name)
    assert after.generations[seen.id].attempt != seen.attempt
    remove(world.store, seen)
    ended(world, work, begun)


def test_a_registry_of_older_code_names_no_rebuild() -> None:
    older = {
        "hash": "h", "stream_keyed": True, "buckets": 1, "topics": {"a.events": 1}, "phase": "bulk", "created": "c",
    }  # fmt: skip
    found = decoded("v", {b"g:1-ab12": json.dumps(older).encode()}).generations["1-ab12"]
    assert (found.attempt, found.fold, found.phase) == ("", "", Phase.BULK)


def test_a_rebuild_of_another_view_is_at_work_elsewhere(world: World, stack: ExitStack) -> None:
    stack.enter_context(rebuild(world, summary, fold="v1").begun())
    assert rebuild(world, by_owner, fold="v1").run().swapped
