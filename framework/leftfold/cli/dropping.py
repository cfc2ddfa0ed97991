"""What `leftfold drop` removes, and what it refuses to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leftfold.cli.console import say
from leftfold.cli.failures import Usage
from leftfold.engine.generations import resolve
from leftfold.engine.leftovers import tails_of
from leftfold.engine.orphans import orphans, remove_orphans
from leftfold.engine.rebuild_removal import remove
from leftfold.flush import Generation, Phase, Registry

if TYPE_CHECKING:
    from leftfold.engine.bulk_store import BulkStore
    from leftfold.view import View

__all__ = ["remove_one", "remove_unlisted"]


def remove_one(store: BulkStore, view: View[Any, Any], named: str, *, sure: bool) -> None:
    """Removes a generation.

    Raises:
        Usage: readers see it, or may see it and nobody said that they are gone.
        ViewNotBuilt: there is none of that name.
    """
    registry = store.registry(view.name)
    found = resolve(registry, view, named)
    if found.phase is not Phase.PINNED and found.id in registry.live.values():
        _check_readers(store, view, found, registry, sure=sure)
    remove(store, found)
    say(f"{view.name}: {found.id} ({found.name or found.phase.value}) is gone")


def _check_readers(store: BulkStore, view: View[Any, Any], live: Generation, registry: Registry, *, sure: bool) -> None:
    which = f"generation {live.id} of {view.name} is live"
    if live.hash == view.hash:
        raise Usage(f"{which}; make another one live first: leftfold rollback {view.name}")
    if tails := tails_of(store, view.name, live.hash):
        raise Usage(
            f"{which} for another version of the code, and tails of that are at work: {', '.join(tails)}; "
            f"stop them first"
        )
    if not sure:
        mine = registry.live_of(view.hash)
        own = f"readers of this code go on with {mine.id}" if mine else "there is none yet that this code can read"
        raise Usage(
            f"{which} for another version of the code; no tail of it is at work, but readers and Spark streams "
            f"do not show themselves: readers of that version would get ViewNotBuilt until something of it has folded "
            f"the whole log again ({own}); if none is left: leftfold drop {view.name} {live.id} --yes"
        )


def remove_unlisted(store: BulkStore, view: View[Any, Any], *, sure: bool) -> None:
    """Removes what no registry lists, or only names it."""
    found = remove_orphans(store, view.name) if sure else list(orphans(store, [view.name]).found)
    for orphan in found:
        say(f"{view.name}: {orphan.id} is {'gone' if sure else 'in no registry'}")
    if not found:
        say(f"{view.name}: every generation that has keys is in its registry")
    elif not sure:
        say(f"remove {'it' if len(found) == 1 else 'them'}: leftfold drop {view.name} --orphans --yes")
