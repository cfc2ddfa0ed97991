"""Removes generations, and finds what interrupted or undeclared work has left in the view store."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any, NamedTuple

from leftfold.engine.views.code_claims import name_of
from leftfold.engine.views.generations import age_key, change, has_ended
from leftfold.engine.views.leases import exclusive_lease, is_of_attempt, members
from leftfold.errors import InfrastructureError, LeftfoldError
from leftfold.model import keys as names
from leftfold.model.view import View
from leftfold.ports.bulk import BulkStore
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.ports.protocols import ViewStore

__all__ = [
    "discard",
    "leftovers",
    "orphans",
    "projectors_of",
    "remove",
    "remove_ended",
    "remove_orphans",
    "remove_undeclared",
    "sweep",
    "undeclared",
    "undeclared_view",
    "way_out",
]  # fmt: skip


_STAYS = (Phase.SEALED, Phase.HELD, Phase.LIVE)
"""Phases that no rebuild and no projector of other code ever removes."""


def projectors_of(store: ViewStore, view: str, hash_: str) -> tuple[str, ...]:
    """The projectors at work on the generations of a hash. Readers and streams on Spark send no heartbeat."""
    group = names.projectors(view, hash_)
    return tuple(map(name_of, store.heartbeat([group], "", 0.0)[group]))


def leftovers(store: ViewStore, view: View[Any, Any]) -> list[Generation]:
    """The generations of other code that no projector works on any more, oldest first."""
    found = [
        generation
        for generation in store.registry(view.name).generations.values()
        if generation.hash != view.hash and generation.phase in _STAYS
    ]
    idle = {hash_ for hash_ in {g.hash for g in found} if not projectors_of(store, view.name, hash_)}
    return sorted((g for g in found if g.hash in idle), key=lambda g: g.created)


def way_out(generation: Generation) -> str:
    """A message that describes the generation, with the command that removes it."""
    return (
        f"view {generation.view}: generation {generation.id} ({generation.phase.value}) was made by code of another "
        f"version, of which no projector is at work; once none of that code runs or reads any more: "
        f"leftfold drop {generation.view} {generation.id} --yes"
    )


class Orphans(NamedTuple):
    """Generations that no registry lists, as far as their keys show."""

    found: tuple[Generation, ...]
    whole: bool
    """Whether the whole store was scanned."""


def orphans(store: BulkStore, views: Collection[str], seconds: float = math.inf) -> Orphans:
    """The generations of some views that have keys and are in no registry.

    One that is being created or removed at this moment may be among them.
    """
    there = store.stored(views, seconds)
    # The registries are read last: what was registered during the scan of the keys is no orphan.
    listed = {view: store.registry(view).generations for view in {view for view, _ in there.buckets}}
    lost = sorted((view, id_, count) for (view, id_), count in there.buckets.items() if id_ not in listed[view])
    found = tuple(Generation(view, id_, "", False, count, {}, Phase.BULK) for view, id_, count in lost)
    return Orphans(found, there.whole)


def remove_orphans(store: BulkStore, view: str) -> list[Generation]:
    """Removes the generations of a view that no registry lists, while no rebuild of it runs; returns them.

    Each is registered first, as a bulk load without a code hash: a process that is creating it finds the registry
    changed and creates another one, and if this process is killed the next rebuild removes the rest.

    Raises:
        InfrastructureError: the view is being rebuilt, or the store is not reachable.
    """
    with exclusive_lease(store, names.rebuilds(view), f"view {view} is being rebuilt or tidied"):
        return [orphan for orphan in orphans(store, [view]).found if _is_removed(store, orphan)]


def _is_removed(store: BulkStore, orphan: Generation) -> bool:
    def adopted(registry: Registry) -> Registry:
        return registry if orphan.id in registry.generations else registry.with_generation(orphan)

    if change(store, orphan.view, adopted).generations[orphan.id] != orphan:
        return False
    store.unlink(orphan)
    change(store, orphan.view, lambda registry: registry.without(orphan.id))
    return True


def remove(store: ViewStore, generation: Generation) -> None:
    """Removes a generation and everything in it, unless since it was read another rebuild took it, or it went live."""

    def without(registry: Registry) -> Registry:
        now = registry.generations.get(generation.id)
        went_live = now is not None and now.phase is Phase.LIVE and generation.phase is not Phase.LIVE
        return registry if went_live or not is_of_attempt(registry, generation) else registry.without(generation.id)

    if generation.id not in change(store, generation.view, without).generations:
        store.unlink(generation)


def remove_ended(store: ViewStore, generation: Generation) -> None:
    """Removes a previous generation past its retention time, unless it was made live or prolonged meanwhile."""

    def without(registry: Registry) -> Registry:
        now = registry.generations.get(generation.id)
        return registry.without(generation.id) if now is not None and has_ended(now) else registry

    if generation.id not in change(store, generation.view, without).generations:
        store.unlink(generation)


def discard(store: BulkStore, generation: Generation, error: BaseException, *, resumable: bool) -> None:
    """Removes a generation that failed while it was built, unless it can be resumed.

    It can be resumed after an interruption or a lost server, but not after a fold that failed. One that is finished,
    such as a live or a held one, stays: what failed is another view of the same rebuild.
    """
    try:
        registry = store.registry(generation.view)
        now = registry.generations.get(generation.id)
        if now is None or now.phase not in (Phase.BULK, Phase.SEALED):
            return
        if not is_of_attempt(registry, generation):
            error.add_note(f"generation {generation.id} is left to {now.attempt}")
            return
        is_interrupted = resumable and isinstance(error, KeyboardInterrupt | InfrastructureError)
        if is_interrupted and (now.phase is Phase.SEALED or store.finished(now) or _is_sealed(store, now)):
            error.add_note(f"what is done of it is kept; to resume it: leftfold rebuild {generation.view}")
            return
        remove(store, generation)
    except LeftfoldError as failure:
        error.add_note(
            f"generation {generation.id} of view {generation.view} could not be removed either ({failure}); "
            f"the next rebuild removes or resumes it"
        )


def _is_sealed(store: ViewStore, generation: Generation) -> bool:
    """Whether all checkpoints are sealed, which they are before the registry says so."""
    checkpoints = store.checkpoints(generation).values()
    is_whole = len(checkpoints) == generation.buckets
    return is_whole and all(checkpoint.phase is Phase.SEALED for checkpoint in checkpoints)


def sweep(store: ViewStore, view: View[Any, Any], keep: float, *, but: Generation | None = None) -> list[Generation]:
    """Removes previous generations past their retention time, and rebuild leftovers that no rebuild will resume.

    A generation that a running rebuild fills stays.

    Args:
        keep: seconds for which a previous generation without an end time stays.
        but: a generation that stays in any case.
    """
    registry, now = store.registry(view.name), datetime.fromtimestamp(time.time(), UTC)
    # Read after the registry: a rebuild sends its heartbeat before it creates a generation.
    leased = members(store, names.rebuilds(view.name))
    over = [
        g
        for g in registry.generations.values()
        if _is_over(g, registry, now, keep) and g.attempt not in leased and (but is None or g.id != but.id)
    ]
    for generation in over:
        remove(store, generation)
    return over


def _is_over(generation: Generation, registry: Registry, now: datetime, keep: float) -> bool:
    match generation.phase:
        case Phase.BULK:
            return True
        case Phase.SEALED:
            # A generation that a projector created has no ends; it goes live when it has caught up.
            return bool(generation.ends.offsets) and generation.id not in registry.live.values()
        case Phase.KEPT if generation.until:
            return has_ended(generation)
        case Phase.KEPT:
            since = generation.since
            return not since or (now - datetime.fromisoformat(since)).total_seconds() > keep
    return False


class Undeclared(NamedTuple):
    """A view that the code at hand does not declare; another App may declare it."""

    view: str
    generations: tuple[Generation, ...]
    """Oldest first."""
    projectors: tuple[str, ...]
    """The projectors at work on any of them. Readers and streams on Spark send no heartbeat."""

    def way_out(self, app: str) -> str:
        """A message that describes the view, with the command that removes it."""
        count = len(self.generations)
        return (
            f"view {self.view}: app {app} does not declare it, and no projector is at work on its {count} "
            f"generation{'' if count == 1 else 's'}; if no other App declares it: leftfold drop {self.view}"
        )


def undeclared(store: BulkStore, declared: Collection[str], seconds: float = math.inf) -> list[Undeclared]:
    """The stored views that are not declared, by name, as far as a scan of so many seconds finds them."""
    others = sorted(store.registered(seconds).views.difference(declared))
    return [found for name in others if (found := undeclared_view(store, name)) is not None]


def undeclared_view(store: BulkStore, name: str) -> Undeclared | None:
    """What the store holds of a view; None when it has no registry for it."""
    generations = sorted(store.registry(name).generations.values(), key=age_key)
    projectors = {
        projector for hash_ in {g.hash for g in generations} for projector in projectors_of(store, name, hash_)
    }
    return Undeclared(name, tuple(generations), tuple(sorted(projectors))) if generations else None


def remove_undeclared(store: BulkStore, view: Undeclared) -> None:
    """Removes every generation of a view, while no rebuild of it runs.

    They first become bulk loads without a code hash, which no reader finds and no projector follows: if this process is
    killed, the registry still names them, and the removal can be repeated.

    Raises:
        InfrastructureError: the view is being rebuilt, or a projector has begun to work on it.
    """
    with exclusive_lease(store, names.rebuilds(view.view), f"view {view.view} is being rebuilt or removed"):
        now = undeclared_view(store, view.view)
        if now is not None and now.projectors:
            raise InfrastructureError(
                f"projectors are at work on view {view.view}: {', '.join(now.projectors)}; stop them first"
            )
        change(store, view.view, lambda registry: _withdrawn(registry, view.generations))
        for generation in view.generations:
            store.unlink(generation)
        change(store, view.view, lambda registry: reduce(Registry.without, (g.id for g in view.generations), registry))


def _withdrawn(registry: Registry, removed: Collection[Generation]) -> Registry:
    ids = {generation.id for generation in removed}
    generations = {
        id_: replace(generation, hash="", phase=Phase.BULK) if id_ in ids else generation
        for id_, generation in registry.generations.items()
    }
    return Registry(generations, {pointer: id_ for pointer, id_ in registry.live.items() if id_ not in ids})
