"""`leftfold drop`: one generation of a view removed, or what no registry lists any more, or what no App declares."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, RedisOption, examples

__all__ = ["EXAMPLES", "drop"]

EXAMPLES = examples(
    "leftfold drop household_spend held            what `rebuild --hold` made and nobody wants",
    "leftfold drop household_spend march           a view as of some place",
    "leftfold drop household_spend 3-ab12 --yes    what readers saw before version= was raised",
    "leftfold drop household_spend --orphans       what processes that were killed left behind",
    "leftfold drop old_report                      what is left of a view that was deleted from the code",
)


def drop(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    generation: Annotated[str, typer.Argument(metavar="GENERATION", help="held, kept, a name or an id.")] = "",
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Instead: generations that have keys and are in no registry.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Also the live one of other code, a kept one, orphans, or the whole view."),
    ] = False,
    app: AppOption = "",
    redis: RedisOption = None,
) -> None:
    """Remove a generation that no reader sees.

    The live one of this code cannot be removed, and a kept one, which `rollback` needs, only with --yes. That of
    another version of the code can, with --yes, once no tail of that version runs. With --orphans all keys are looked
    through; nothing is removed without --yes. A view that the App does not declare goes as a whole: without --yes it is
    only told what there is of it.
    """
    from leftfold.cli.dropping import remove_one, remove_unlisted, remove_whole
    from leftfold.cli.failures import Usage
    from leftfold.cli.project import load_app
    from leftfold.cli.workbench import store_of, view_of

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
