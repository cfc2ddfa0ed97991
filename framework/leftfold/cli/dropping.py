"""What `leftfold drop` removes, and what it refuses to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leftfold.cli.console import amount, say
from leftfold.cli.failures import Usage, unknown
from leftfold.engine.generations import resolve
from leftfold.engine.leftovers import tails_of
from leftfold.engine.orphans import orphans, remove_orphans
from leftfold.engine.rebuild_removal import remove
from leftfold.engine.undeclared import remove_undeclared, undeclared_view
from leftfold.flush import Generation, Phase, Registry

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.engine.bulk_store import BulkStore
    from leftfold.view import View

__all__ = ["remove_one", "remove_unlisted", "remove_whole"]


def remove_one(store: BulkStore, view: View[Any, Any], named: str, *, sure: bool) -> None:
    """Removes a generation.

    Raises:
        Usage: readers see it, or may see it and nobody said that they are gone; or a rollback needs it.
        ViewNotBuilt: there is none of that name.
    """
    registry = store.registry(view.name)
    found = resolve(registry, view, named)
    if found.phase is not Phase.PINNED and found.id in registry.live.values():
        _check_readers(store, view, found, registry, sure=sure)
    elif found.phase is Phase.KEPT and not sure:
        until = f"until {found.until}" if found.until else "until a later rebuild"
        raise Usage(
            f"generation {found.id} of {view.name} is kept {until} for leftfold rollback {view.name}; to remove it all "
            f"the same: leftfold drop {view.name} {found.id} --yes"
        )
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


def remove_unlisted(store: BulkStore, view: str, *, sure: bool) -> bool:
    """Removes what of a view no registry lists, or only names it; whether there is any."""
    found = remove_orphans(store, view) if sure else list(orphans(store, [view]).found)
    for orphan in found:
        say(f"{view}: {orphan.id} is {'gone' if sure else 'in no registry'}")
    if not found:
        say(f"{view}: every generation that has keys is in its registry")
    elif not sure:
        say(f"remove {'it' if len(found) == 1 else 'them'}: leftfold drop {view} --orphans --yes")
    return bool(found)


def remove_whole(store: BulkStore, app: App, name: str, generation: str, *, sure: bool) -> None:
    """Removes a view that the App does not declare, or only says what of it there is.

    Args:
        generation: must be '': whose code any one is, nobody knows here.

    Raises:
        Usage: nobody knows it, one generation is meant, or tails are at work on it.
    """
    found = undeclared_view(store, name)
    if found is None:
        raise unknown(f"view in app {app.name} or in Redis called", name, (view.name for view in app.views))
    if generation:
        raise Usage(f"app {app.name} does not declare the view {name}: all of it goes or nothing: leftfold drop {name}")
    if found.tails:
        raise Usage(
            f"app {app.name} does not declare the view {name}, but another App, or older code, does: tails of it are "
            f"at work: {', '.join(found.tails)}; stop them first"
        )
    for one in found.generations:
        rows = amount(sum(mark.rows for mark in store.marks(one).values()), "row")
        say(f"{name}: {one.id} ({one.name or one.phase.value}), begun {one.created}, {rows}")
    if sure:
        remove_undeclared(store, found)
        say(f"{name}: all of it is gone")
        return
    say(
        f"app {app.name} does not declare the view {name}. No tail is at work on it, but readers and Spark streams of "
        f"another App do not show themselves; if there is none, remove all of it: leftfold drop {name} --yes"
    )
