"""Taking generations out of the registry and of the store, in that order, so that no tail follows what is going."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from leftfold import names
from leftfold.engine.at_work import members
from leftfold.engine.bulk_store import BulkStore
from leftfold.engine.generations import change, has_ended
from leftfold.engine.rebuild_attempt import is_of_attempt
from leftfold.errors import InfrastructureError, LeftfoldError
from leftfold.flush import Generation, Phase, Registry
from leftfold.ports import ViewStore
from leftfold.view import View

__all__ = ["abandon", "remove", "remove_ended", "sweep"]


def remove(store: ViewStore, generation: Generation) -> None:
    """Removes a generation and everything in it, unless another rebuild has taken it over since it was read."""
    left = change(store, generation.view, lambda r: r.without(generation.id) if is_of_attempt(r, generation) else r)
    if generation.id not in left.generations:
        store.unlink(generation)


def remove_ended(store: ViewStore, generation: Generation) -> None:
    """Removes a kept generation that is past its time, unless it has been made live or prolonged meanwhile."""

    def without(registry: Registry) -> Registry:
        now = registry.generations.get(generation.id)
        return registry.without(generation.id) if now is not None and has_ended(now) else registry

    if generation.id not in change(store, generation.view, without).generations:
        store.unlink(generation)


def abandon(store: BulkStore, generation: Generation, error: BaseException, *, resumable: bool) -> None:
    """Removes a generation that failed before it was live, unless it became so or can be gone on with.

    That can be done after an interruption or a lost server, but not after a fold that failed.
    """
    try:
        registry = store.registry(generation.view)
        if registry.live.get(generation.pointer) == generation.id or generation.id not in registry.generations:
            return
        if not is_of_attempt(registry, generation):
            error.add_note(f"generation {generation.id} is left to {registry.generations[generation.id].attempt}")
            return
        if (
            resumable
            and isinstance(error, KeyboardInterrupt | InfrastructureError)
            and _has_something(store, registry, generation)
        ):
            error.add_note(f"what is done of it is kept: leftfold rebuild {generation.view} goes on there")
            return
        remove(store, generation)
    except LeftfoldError as failure:
        error.add_note(
            f"generation {generation.id} of view {generation.view} could not be removed either ({failure}); "
            f"the next rebuild removes it or goes on with it"
        )


def _has_something(store: BulkStore, registry: Registry, generation: Generation) -> bool:
    now = registry.generations[generation.id]
    return now.phase is Phase.SEALED or bool(store.finished(now))


def sweep(store: ViewStore, view: View[Any, Any], keep: float, *, but: Generation | None = None) -> list[Generation]:
    """Removes predecessors whose time is over, and what rebuilds left that no rebuild continues.

    What a rebuild that is at work fills stays.

    Args:
        keep: seconds for which a predecessor stays that does not say when it ends. but: stays whatever it is.
    """
    registry, now = store.registry(view.name), datetime.fromtimestamp(time.time(), UTC)
    # Asked behind the registry: a rebuild shows itself before it makes a generation.
    at_work = members(store, names.rebuilds(view.name))
    gone = [
        g
        for g in registry.generations.values()
        if _is_over(g, registry, now, keep) and g.attempt not in at_work and (but is None or g.id != but.id)
    ]
    for generation in gone:
        remove(store, generation)
    return gone


def _is_over(generation: Generation, registry: Registry, now: datetime, keep: float) -> bool:
    match generation.phase:
        case Phase.BULK:
            return True
        case Phase.SEALED:
            # What a tail begins has no ends; it goes live when it has caught up.
            return bool(generation.ends.offsets) and generation.id not in registry.live.values()
        case Phase.KEPT:
            return has_ended(generation) if generation.until else _age(generation.since, now) > keep
    return False


def _age(since: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(since)).total_seconds() if since else float("inf")
