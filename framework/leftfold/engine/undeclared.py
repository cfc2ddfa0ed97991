"""Views that a store holds and an App does not declare: what is left when a view is deleted from the code."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from leftfold import names
from leftfold.engine.at_work import at_work
from leftfold.engine.bulk_store import BulkStore
from leftfold.engine.generations import birth, change
from leftfold.engine.leftovers import tails_of
from leftfold.errors import InfrastructureError
from leftfold.flush import Generation, Phase, Registry

__all__ = ["Undeclared", "remove_undeclared", "undeclared", "undeclared_view"]


class Undeclared(NamedTuple):
    """A view that the code at hand does not know; another App may declare it."""

    view: str
    generations: tuple[Generation, ...]
    """Oldest first."""
    tails: tuple[str, ...]
    """Who is at work on any of them. Readers and streams on Spark do not show themselves."""

    def way_out(self, app: str) -> str:
        """What it is, and what to type when it is not wanted any more."""
        count = len(self.generations)
        return (
            f"view {self.view}: app {app} does not declare it, and no tail is at work on its {count} "
            f"generation{'' if count == 1 else 's'}; if no other App declares it: leftfold drop {self.view}"
        )


def undeclared(store: BulkStore, declared: Collection[str], seconds: float = math.inf) -> list[Undeclared]:
    """The views beside those that are declared, by name, as far as so many seconds are enough to find them."""
    others = sorted(store.registered(seconds).views.difference(declared))
    return [found for name in others if (found := undeclared_view(store, name)) is not None]


def undeclared_view(store: BulkStore, name: str) -> Undeclared | None:
    """What the store holds of a view; None when it has no registry of it."""
    generations = sorted(store.registry(name).generations.values(), key=birth)
    tails = {tail for hash_ in {g.hash for g in generations} for tail in tails_of(store, name, hash_)}
    return Undeclared(name, tuple(generations), tuple(sorted(tails))) if generations else None


def remove_undeclared(store: BulkStore, view: Undeclared) -> None:
    """Removes every generation of a view, while no rebuild of it runs.

    They first become bulk loads of nobody's code, which no reader finds and no tail follows: if this process is killed,
    the registry still names them, and it can be done again.

    Raises:
        InfrastructureError: the view is being rebuilt, or a tail has begun to work on it.
    """
    with at_work(store, names.rebuilds(view.view), f"view {view.view} is being rebuilt or removed"):
        now = undeclared_view(store, view.view)
        if now is not None and now.tails:
            raise InfrastructureError(f"tails are at work on view {view.view}: {', '.join(now.tails)}; stop them first")
        change(store, view.view, lambda registry: _withdrawn(registry, view.generations))
        for generation in view.generations:
            store.unlink(generation)
        change(store, view.view, lambda registry: reduce(Registry.without, (g.id for g in view.generations), registry))


def _withdrawn(registry: Registry, gone: Collection[Generation]) -> Registry:
    ids = {generation.id for generation in gone}
    generations = {
        id_: replace(generation, hash="", phase=Phase.BULK) if id_ in ids else generation
        for id_, generation in registry.generations.items()
    }
    return Registry(generations, {pointer: id_ for pointer, id_ in registry.live.items() if id_ not in ids})
