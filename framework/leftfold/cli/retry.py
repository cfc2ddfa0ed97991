"""`leftfold retry`: parked rows folded again, parked events of reactions tried again."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples

__all__ = ["EXAMPLES", "retry"]

EXAMPLES = examples(
    "leftfold retry household_spend            every parked row of the view",
    "leftfold retry household_spend 1234 5678  these two",
    "leftfold retry receipts                   what a reaction has parked, once more, from here",
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
    """Fold parked rows again from the beginning, or try parked events of a reaction again, with the code that is here.

    Mend the fold first, and let the tails run the mended code: they would park the rows again. Tails go on meanwhile.
    Events of a reaction are tried once each, in this process, with the idempotency keys that they had.
    Exit code 1 when something stays parked.
    """
    from leftfold.cli.console import amount, emit, say
    from leftfold.cli.failures import unknown
    from leftfold.cli.keys import encoded_key
    from leftfold.cli.project import load_app
    from leftfold.cli.retrying import retry_parked
    from leftfold.cli.workbench import check_broker, folded_view_of, workbench
    from leftfold.engine.generations import resolve
    from leftfold.engine.retry import Retry

    whole = load_app(app, having=[name])
    if name in {reaction.name for reaction in whole.reactions}:
        raise typer.Exit(retry_parked(whole, name, keys or [], kafka, as_json=as_json))
    if name not in (views := {view.name for view in whole.views}):
        raise unknown(f"view or reaction in app {whole.name} called", name, views | {r.name for r in whole.reactions})
    view = folded_view_of(whole, name)
    check_broker(kafka)
    wanted = [encoded_key(view, key) for key in keys or ()]
    with workbench(kafka, redis, archive) as bench:
        live = resolve(bench.store.registry(view.name), view, "live")
        result = Retry(view, bench.store, bench.open_log).run(live, wanted)
    if as_json:
        emit({"view": view.name, "generation": live.id, "freed": result.freed, "parked": result.parked})
    else:
        say(f"{view.name}: {amount(len(result.freed), 'row')} freed, {len(result.parked):,} still parked")
        for key, why in result.parked.items():
            say(f"  {key}: {why}")
    raise typer.Exit(1 if result.parked else 0)
