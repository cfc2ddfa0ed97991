"""Which attempt of a rebuild fills a generation: only the last to take it over seals, shows or removes it."""

from __future__ import annotations

from dataclasses import replace

from leftfold.engine.generations import change
from leftfold.errors import Fenced
from leftfold.flush import Generation, Registry
from leftfold.ports import ViewStore

__all__ = ["check_attempt", "is_of_attempt", "taken_over"]


def taken_over(store: ViewStore, generation: Generation, attempt: str) -> Generation:
    """A generation that another attempt left, as one of this attempt from here on.

    Raises:
        Fenced: it was removed or taken over meanwhile.
    """

    def take_over(registry: Registry) -> Registry:
        check_attempt(registry, generation)
        return registry.with_generation(replace(registry.generations[generation.id], attempt=attempt))

    change(store, generation.view, take_over)
    return replace(generation, attempt=attempt)


def is_of_attempt(registry: Registry, generation: Generation) -> bool:
    """Whether a generation still belongs to the attempt that it belonged to when it was read."""
    now = registry.generations.get(generation.id)
    return now is not None and now.attempt == generation.attempt


def check_attempt(registry: Registry, generation: Generation) -> None:
    """Raises Fenced when a generation was removed, or belongs to another attempt than when it was read."""
    if generation.id not in registry.generations:
        raise Fenced(f"generation {generation.id} of view {generation.view} was removed by another process")
    if not is_of_attempt(registry, generation):
        by = registry.generations[generation.id].attempt
        raise Fenced(
            f"generation {generation.id} of view {generation.view} was taken over by {by} while this rebuild did not "
            f"show itself; wait for that one"
        )
