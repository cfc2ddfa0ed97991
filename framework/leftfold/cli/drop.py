"""`leftfold drop`: one generation of a view removed."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, RedisOption, examples

__all__ = ["EXAMPLES", "drop"]

EXAMPLES = examples(
    "leftfold drop household_spend held      what `rebuild --hold` made and nobody wants",
    "leftfold drop household_spend march     a view as of some place",
    "leftfold drop household_spend 3-ab12",
)


def drop(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    generation: Annotated[str, typer.Argument(metavar="GENERATION", help="held, kept, a name or an id.")],
    app: AppOption = "",
    redis: RedisOption = None,
) -> None:
    """Remove a generation that no reader sees.

    The live one cannot be removed; neither can one that another version of the code shows its readers.
    """
    from leftfold.cli.console import say
    from leftfold.cli.failures import Usage
    from leftfold.cli.project import load_app
    from leftfold.cli.workbench import store_of, view_of
    from leftfold.engine.generations import resolve
    from leftfold.engine.rebuild_removal import remove
    from leftfold.flush import Phase

    meant = view_of(load_app(app), view)
    with store_of(redis) as store:
        registry = store.registry(meant.name)
        found = resolve(registry, meant, generation)
        if found.phase is not Phase.PINNED and found.id in registry.live.values():
            raise Usage(
                f"generation {found.id} of {view} is live; make another one live first: leftfold rollback {view}"
            )
        remove(store, found)
    say(f"{view}: {found.id} ({found.name or found.phase.value}) is gone")
