"""What no registry lists: left by a process that was killed while it made or removed a generation."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from leftfold import names
from leftfold.engine.at_work import at_work
from leftfold.engine.bulk_store import BulkStore
from leftfold.engine.generations import change
from leftfold.flush import Generation, Phase, Registry

__all__ = ["Orphans", "orphans", "remove_orphans"]


class Orphans(NamedTuple):
    """Generations that no registry lists, as far as they can be told by their keys."""

    found: tuple[Generation, ...]
    whole: bool
    """Whether the store was looked through to its end."""


def orphans(store: BulkStore, views: Collection[str], seconds: float = math.inf) -> Orphans:
    """The generations of some views that have keys and are in no registry.

    One that is being made or removed at this moment may be among them.
    """
    there = store.stored(views, seconds)
    # The registries are read last: what was registered while the keys were looked through is no orphan.
    listed = {view: store.registry(view).generations for view in {view for view, _ in there.buckets}}
    lost = sorted((view, id_, count) for (view, id_), count in there.buckets.items() if id_ not in listed[view])
    return Orphans(tuple(_nameless(*one) for one in lost), there.whole)


def remove_orphans(store: BulkStore, view: str) -> list[Generation]:
    """Removes what of a view no registry lists, while no rebuild of it runs; returns what is gone.

    Each is registered first, as a bulk load of nobody's code: whoever was making it finds the registry changed and
    makes another one, and if this process is killed the next rebuild removes the rest.

    Raises:
        InfrastructureError: the view is being rebuilt, or the store is not there.
    """
    with at_work(store, names.rebuilds(view), f"view {view} is being rebuilt or tidied"):
        return [orphan for orphan in orphans(store, [view]).found if _is_removed(store, orphan)]


def _is_removed(store: BulkStore, orphan: Generation) -> bool:
    def adopted(registry: Registry) -> Registry:
        return registry if orphan.id in registry.generations else registry.with_generation(orphan)

    if change(store, orphan.view, adopted).generations[orphan.id] != orphan:
        return False
    store.unlink(orphan)
    change(store, orphan.view, lambda registry: registry.without(orphan.id))
    return True


def _nameless(view: str, id_: str, buckets: int) -> Generation:
    return Generation(view, id_, "", False, buckets, {}, Phase.BULK)
