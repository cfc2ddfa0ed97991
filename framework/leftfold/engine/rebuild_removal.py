"""Taking generations out of the registry and of the store, in that order, so that no tail follows what is going."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from leftfold.engine.generations import change
from leftfold.errors import LeftfoldError
from leftfold.flush import Generation, Phase, Registry
from leftfold.ports import ViewStore
from leftfold.view import View

__all__ = ["abandon", "remove", "sweep"]

_DEAD_AFTER = 86_400.0
"""A bulk load that began a day ago and is not sealed has lost its process."""


def remove(store: ViewStore, generation: Generation) -> None:
    """Removes a generation and everything in it."""
    change(store, generation.view, lambda r: r.without(generation.id))
    store.unlink(generation)


def abandon(store: ViewStore, generation: Generation, error: BaseException) -> None:
    """Removes a generation that failed before it was live, unless it became so; says on the error if it cannot."""
    try:
        if store.registry(generation.view).live.get(generation.hash) != generation.id:
            remove(store, generation)
    except LeftfoldError as failure:
        error.add_note(
            f"generation {generation.id} of view {generation.view} could not be removed either ({failure}); "
            f"the next rebuild removes it after a day"
        )


def sweep(store: ViewStore, view: View[Any, Any], keep: float) -> list[Generation]:
    """Removes predecessors that were kept for `keep` seconds, and bulk loads whose process is long gone."""
    registry, now = store.registry(view.name), datetime.now(UTC)
    gone = [g for g in registry.generations.values() if _is_over(g, registry, now, keep)]
    for generation in gone:
        remove(store, generation)
    return gone


def _is_over(generation: Generation, registry: Registry, now: datetime, keep: float) -> bool:
    match generation.phase:
        case Phase.BULK:
            return _age(generation.created, now) > _DEAD_AFTER
        case Phase.KEPT:
            return _age(_kept_since(generation, registry), now) > keep
    return False


def _kept_since(generation: Generation, registry: Registry) -> str:
    """When the live generation of its hash was begun: the registry does not say when it went live."""
    live = registry.live_of(generation.hash)
    return max(generation.created, live.created if live is not None else "")


def _age(created: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(created)).total_seconds() if created else float("inf")
