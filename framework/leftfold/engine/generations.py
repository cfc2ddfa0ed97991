"""The life of generations in a view's registry: made, sealed, pointed at, kept, removed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from leftfold import names
from leftfold.errors import InfrastructureError
from leftfold.flush import Generation, Mark, Phase, Registry
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["BUCKETS", "birth", "change", "empty_marks", "followed", "new_generation", "open_generation", "topics_of"]

BUCKETS = 16


def topics_of(view: View[Any, Any], count: Callable[[str], int]) -> dict[str, int]:
    """The event topics a view reads, with their partition counts."""
    return {topic: count(topic) for topic in map(names.events, view.categories)}


def new_generation(
    view: View[Any, Any], registry: Registry, topics: Mapping[str, int], phase: Phase, buckets: int = BUCKETS
) -> Generation:
    """The next generation of a view; ids are 1-xxxx, 2-xxxx, …, with a random suffix so that two makers differ."""
    number = 1 + max((int(i.split("-")[0]) for i in registry.generations), default=0)
    count = next(iter(topics.values())) if view.stream_keyed else buckets
    created = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Generation(
        view.name, f"{number}-{secrets.token_hex(2)}", view.hash, view.stream_keyed, count, dict(topics), phase, created
    )


def birth(generation: Generation) -> tuple[str, int]:
    """What orders the generations of a view by their age."""
    return generation.created, int(generation.id.split("-")[0])


def empty_marks(generation: Generation) -> dict[int, Mark]:
    """Marks at the start of the log."""
    return {bucket: Mark(Position(), phase=generation.phase) for bucket in range(generation.buckets)}


def change(store: ViewStore, view: str, how: Callable[[Registry], Registry]) -> Registry:
    """Applies a change to the registry as it is when the change lands.

    Raises:
        InfrastructureError: others changed it a hundred times in between.
    """
    for _ in range(100):
        before = store.registry(view)
        after = how(before)
        if after == before or store.change_registry(view, before, after):
            return after
    raise InfrastructureError(f"the registry of view {view} changes too often; are two rebuilds running?")


def open_generation(
    store: ViewStore, view: View[Any, Any], topics: Mapping[str, int], phase: Phase, buckets: int = BUCKETS
) -> Generation:
    """Makes and registers a new, empty generation, its marks first."""
    while True:
        registry = store.registry(view.name)
        generation = new_generation(view, registry, topics, phase, buckets)
        if not store.create_marks(generation, empty_marks(generation)):
            continue
        if store.change_registry(view.name, registry, registry.with_generation(generation)):
            return generation
        store.unlink(generation)


def followed(registry: Registry, view: View[Any, Any]) -> dict[str, Generation]:
    """The generations that a tail of this code follows: those of its hash that are past bulk."""
    return {i: g for i, g in registry.generations.items() if g.hash == view.hash and g.phase is not Phase.BULK}
