"""`leftfold drop`: removes a generation of a view, or keys that no registry and no App refers to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, RedisOption, examples
from leftfold.engine.views.cleanup import (
    orphans,
    projectors_of,
    remove,
    remove_orphans,
    remove_undeclared,
    undeclared_view,
)
from leftfold.engine.views.generations import resolve
from leftfold.model.app import App
from leftfold.model.view import View
from leftfold.ports.bulk import BulkStore
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.runtime.console import amount, say
from leftfold.runtime.project import Usage, load_app, unknown, view_of
from leftfold.runtime.servers import store_of

__all__ = ["remove_one", "remove_unlisted"]


EXAMPLES = examples(
    "leftfold drop household_spend held            what `rebuild --hold` made and is not wanted",
    "leftfold drop household_spend march           a view as of an earlier position",
    "leftfold drop household_spend 3-ab12 --yes    what readers saw before version= was raised",
    "leftfold drop household_spend --orphans       what killed processes left behind",
    "leftfold drop old_report                      what is left of a view that was deleted from the code",
)


def drop(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    generation: Annotated[str, typer.Argument(metavar="GENERATION", help="held, kept, a name or an id.")] = "",
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Instead: generations that have keys but are in no registry.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Also the live one of other code, a kept one, orphans, or the whole view.")
    ] = False,
    app: AppOption = "",
    redis: RedisOption = None,
) -> None:
    """Remove a generation that no reader sees.

    The live one of this code cannot be removed, and a kept one, which `rollback` needs, only with --yes. That of
    another version of the code can, with --yes, once no projector of that version runs. With --orphans all keys are
    scanned; nothing is removed without --yes. A view that the App does not declare is removed as a whole; without --yes
    its generations are only listed.
    """
    whole = load_app(app, having=[view])
    declared = any(known.name == view for known in whole.views)
    if (generation and orphans) or (declared and not generation and not orphans):
        raise Usage(f"say which generation: leftfold drop {view} ID, or leftfold drop {view} --orphans")
    with store_of(redis) as store:
        if orphans:
            found = remove_unlisted(store, view, sure=yes)
            if not (found or declared or store.registry(view).generations):
                view_of(whole, view)
        elif declared:
            remove_one(store, view_of(whole, view), generation, sure=yes)
        else:
            remove_whole(store, whole, view, generation, sure=yes)


def remove_one(store: BulkStore, view: View[Any, Any], named: str, *, sure: bool) -> None:
    """Removes a generation.

    Raises:
        Usage: readers see it, or may see it and `sure` is false; or a rollback needs it.
        ViewNotBuilt: there is no generation of that name.
    """
    registry = store.registry(view.name)
    found = resolve(registry, view, named)
    if found.phase is not Phase.PINNED and found.id in registry.live.values():
        _check_readers(store, view, found, registry, sure=sure)
    elif found.phase is Phase.KEPT and not sure:
        until = f"until {found.until}" if found.until else "until a later rebuild"
        needed = f" for leftfold rollback {view.name}" if view.folded else ""
        raise Usage(
            f"generation {found.id} of {view.name} is kept {until}{needed}; to remove it all the same: "
            f"leftfold drop {view.name} {found.id} --yes"
        )
    remove(store, found)
    say(f"{view.name}: {found.id} ({found.name or found.phase.value}) is removed")


def _check_readers(store: BulkStore, view: View[Any, Any], live: Generation, registry: Registry, *, sure: bool) -> None:
    which = f"generation {live.id} of {view.name} is live"
    if live.hash == view.hash:
        step = "rollback" if view.folded else "rebuild"
        raise Usage(f"{which}; make another one live first: leftfold {step} {view.name}")
    if projectors := projectors_of(store, view.name, live.hash):
        raise Usage(
            f"{which} for another version of the code, and projectors of that are at work: {', '.join(projectors)}; "
            f"stop them first"
        )
    if not sure:
        mine = registry.live_of(view.hash)
        own = f"readers of this code go on with {mine.id}" if mine else "there is none yet that this code can read"
        raise Usage(
            f"{which} for another version of the code; no projector of it is at work, but readers and Spark streams "
            f"do not show themselves: readers of that version would get ViewNotBuilt until something of it has folded "
            f"the whole log again ({own}); if none is left: leftfold drop {view.name} {live.id} --yes"
        )


def remove_unlisted(store: BulkStore, view: str, *, sure: bool) -> bool:
    """Removes generations of a view that no registry lists, or only lists them; true when there are any."""
    found = remove_orphans(store, view) if sure else list(orphans(store, [view]).found)
    for orphan in found:
        say(f"{view}: {orphan.id} is {'removed' if sure else 'in no registry'}")
    if not found:
        say(f"{view}: every generation that has keys is in its registry")
    elif not sure:
        say(f"remove {'it' if len(found) == 1 else 'them'}: leftfold drop {view} --orphans --yes")
    return bool(found)


def remove_whole(store: BulkStore, app: App, name: str, generation: str, *, sure: bool) -> None:
    """Removes a view that the App does not declare, or only lists its generations.

    Args:
        generation: must be '', since the code of each generation is unknown here.

    Raises:
        Usage: the view is unknown, a generation is named, or projectors are at work on the view.
    """
    found = undeclared_view(store, name)
    if found is None:
        raise unknown(f"view in app {app.name} or in Redis called", name, (view.name for view in app.views))
    if generation:
        raise Usage(f"app {app.name} does not declare the view {name}: all of it goes or nothing: leftfold drop {name}")
    if found.projectors:
        raise Usage(
            f"app {app.name} does not declare the view {name}, but another App, or older code, does: projectors of it "
            f"are at work: {', '.join(found.projectors)}; stop them first"
        )
    for one in found.generations:
        rows = amount(sum(checkpoint.rows for checkpoint in store.checkpoints(one).values()), "row")
        say(f"{name}: {one.id} ({one.name or one.phase.value}), begun {one.created}, {rows}")
    if sure:
        remove_undeclared(store, found)
        say(f"{name}: all of it is removed")
        return
    say(
        f"app {app.name} does not declare the view {name}. No projector is at work on it, but readers and Spark "
        f"streams of another App do not show themselves; if there is none, remove all of it: leftfold drop {name} --yes"
    )
