"""`leftfold retry`: folds parked rows again, or runs the parked events of a reaction again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, encoded_key, examples
from leftfold.engine.progress import RebuildProgress
from leftfold.model.app import App
from leftfold.runtime.console import amount, emit, say, shown
from leftfold.runtime.operations.generations import retried
from leftfold.runtime.operations.reactions import retry_parked as retry_reaction
from leftfold.runtime.project import Usage, folded_view_of, load_app, unknown

__all__ = ["EXAMPLES", "retry", "retry_parked"]


EXAMPLES = examples(
    "leftfold retry household_spend            every parked row of the view",
    "leftfold retry household_spend 1234 5678  these two",
    "leftfold retry receipts                   the parked events of a reaction, in this process",
)


def retry(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The view's name, or the reaction's.")],
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Row keys; else all parked ones.")
    ] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold parked rows again from the beginning, or try parked events of a reaction again.

    Both run in this process, with the code that is here.

    Correct the fold first, and start the projectors with the corrected code: else they park the rows again. Projectors
    may run meanwhile. Events of a reaction are tried once each, with the same idempotency keys as before. Exit code 1
    when something stays parked.
    """
    whole = load_app(app, having=[name])
    if name in {reaction.name for reaction in whole.reactions}:
        raise typer.Exit(retry_parked(whole, name, keys or [], kafka, archive, as_json=as_json))
    if name not in (views := {view.name for view in whole.views}):
        raise unknown(f"view or reaction in app {whole.name} called", name, views | {r.name for r in whole.reactions})
    view = folded_view_of(whole, name)
    wanted = [encoded_key(view, key) for key in keys or ()]
    live, result = retried(view, wanted, (kafka, redis, archive))
    if as_json:
        emit({"view": view.name, "generation": live.id, "freed": result.freed, "parked": result.parked})
    else:
        say(f"{view.name}: {amount(len(result.freed), 'row')} freed, {len(result.parked):,} still parked")
        for key, why in result.parked.items():
            say(f"  {key}: {why}")
    raise typer.Exit(1 if result.parked else 0)


def retry_parked(
    app: App, name: str, keys: Sequence[str], kafka: str | None, archive: str | None = None, *, as_json: bool
) -> int:
    """Tries each parked event of a reaction once; returns the exit code.

    Raises:
        Usage: keys were named. InfrastructureError: no broker answers.
    """
    if keys:
        raise Usage(f"{name} is a reaction: all that it has parked is tried again; leave out {' '.join(keys)}")
    with shown(name) as report:
        tell = lambda count: report(RebuildProgress("trying again", count, 0))  # noqa: E731
        tried = retry_reaction(app, name, kafka, tell, archive)
    if as_json:
        emit({"reaction": name, "done": tried.done, "parked": tried.parked})
    else:
        say(f"{name}: {amount(tried.done, 'event')} done, {len(tried.parked):,} parked again")
        for where, why in tried.parked.items():
            say(f"  {where}: {why}")
    return 1 if tried.parked else 0
