"""Going on with a rebuild that was interrupted: its generation, where it was to stop, and which buckets are whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leftfold import names
from leftfold.engine.at_work import members
from leftfold.engine.bulk_store import BulkStore
from leftfold.engine.plan import RebuildPlan
from leftfold.flush import Generation, Phase
from leftfold.view import View

if TYPE_CHECKING:
    from leftfold.engine.rebuild import RebuildOptions

__all__ = ["resumed", "unfinished"]


def unfinished(store: BulkStore, view: View[Any, Any], options: RebuildOptions) -> Generation | None:
    """The newest generation that a rebuild of the same code began with the same intention and did not make live.

    One whose rebuild is at work is left to it.
    """
    if options.fresh or not options.fold:
        return None
    at_work = members(store, names.rebuilds(view.name))
    found = [
        as_it_is
        for generation in store.registry(view.name).generations.values()
        if (generation.hash, generation.fold, generation.name) == (view.hash, options.fold, options.pin)
        and generation.phase in (Phase.BULK, Phase.SEALED)
        and generation.ends.offsets
        and generation.attempt not in at_work
        and (as_it_is := _as_it_is(store, generation)) is not None
    ]
    return max(found, key=lambda generation: generation.created, default=None)


def _as_it_is(store: BulkStore, generation: Generation) -> Generation | None:
    """A generation as its marks say: they are sealed before the registry hears of it. None = it is not whole."""
    marks = store.marks(generation)
    phases = {mark.phase for mark in marks.values()}
    return generation.in_phase(phases.pop()) if len(marks) == generation.buckets and len(phases) == 1 else None


def resumed(plan: RebuildPlan, generation: Generation, store: BulkStore) -> RebuildPlan:
    """What is left of a plan: the same ends as before, without the partitions whose buckets are whole."""
    whole = store.finished(generation).keys() if generation.stream_keyed else frozenset[int]()
    tasks = [
        tuple(
            part._replace(end=generation.ends.next_offset(part.topic, part.partition))
            for part in task
            if part.partition not in whole
        )
        for task in plan.tasks
    ]
    left = tuple(task for task in (tuple(part for part in task if part.end > part.start) for task in tasks) if task)
    return replace(plan, ends=generation.ends, tasks=left, buckets=generation.buckets)
