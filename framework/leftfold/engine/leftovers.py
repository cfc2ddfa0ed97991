"""Generations of other code than this: who still follows them, and which nobody gets rid of by himself."""

from __future__ import annotations

from typing import Any

from leftfold import names
from leftfold.engine.claims import name_of
from leftfold.flush import Generation, Phase
from leftfold.ports import ViewStore
from leftfold.view import View

__all__ = ["leftovers", "tails_of", "way_out"]

_STAYS = (Phase.SEALED, Phase.HELD, Phase.LIVE)
"""What no rebuild and no tail of other code ever removes."""


def tails_of(store: ViewStore, view: str, hash_: str) -> tuple[str, ...]:
    """The tails at work on the generations of a hash. Readers and streams on Spark do not show themselves."""
    group = names.tails(view, hash_)
    return tuple(map(name_of, store.attend([group], "", 0.0)[group]))


def leftovers(store: ViewStore, view: View[Any, Any]) -> list[Generation]:
    """The generations of other code that no tail attends any more, oldest first."""
    found = [
        generation
        for generation in store.registry(view.name).generations.values()
        if generation.hash != view.hash and generation.phase in _STAYS
    ]
    idle = {hash_ for hash_ in {g.hash for g in found} if not tails_of(store, view.name, hash_)}
    return sorted((g for g in found if g.hash in idle), key=lambda g: g.created)


def way_out(generation: Generation) -> str:
    """What it is, and what to type when it is not wanted any more."""
    return (
        f"view {generation.view}: generation {generation.id} ({generation.phase.value}) was made by code of another "
        f"version, of which no tail is at work; once none of that code runs or reads any more: "
        f"leftfold drop {generation.view} {generation.id} --yes"
    )
