"""`leftfold watch`: the rows of a view as they change."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, JsonOption, RedisOption, examples

__all__ = ["EXAMPLES", "watch"]

EXAMPLES = examples(
    "leftfold watch household_spend                                  every row that changes, until Ctrl-C",
    "leftfold watch household_spend 1234 1235                        two rows only",
    "leftfold watch basket_summary --after 'baskets.events[3:17]'    go on from there, without missing anything",
    "leftfold watch product_sales --json | jq -r .row.product_id",
)


def watch(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these rows.")] = None,
    after: Annotated[str, typer.Option("--after", metavar="POSITION", help="Go on from here; else from now on.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="Stop when nothing changed for so long.")
    ] = None,
    app: AppOption = "",
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print rows as they change, each as it is now; several changes of a row may be one line.

    The --json form names the position behind each change: give the last one as --after to miss nothing.
    """
    from leftfold.cli.changes import show_changes
    from leftfold.cli.keys import read_key
    from leftfold.cli.positions import read_position
    from leftfold.cli.project import load_app
    from leftfold.cli.workbench import view_of
    from leftfold.connection import connect

    whole = load_app(app, having=[name])
    view = view_of(whole, name)
    wanted = [read_key(view, key) for key in keys] if keys else None
    position = read_position(after) if after else None
    with connect(whole, redis=redis) as leftfold:
        changes = leftfold.views[view].watch(after=position, keys=wanted, timeout=timeout)
        show_changes(view, changes, limit, as_json=as_json)
