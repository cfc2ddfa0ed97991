"""`leftfold retry`: parked rows folded again."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples

__all__ = ["EXAMPLES", "retry"]

EXAMPLES = examples(
    "leftfold retry household_spend            every parked row of the view",
    "leftfold retry household_spend 1234 5678  these two",
)


def retry(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Row keys; else all parked ones.")
    ] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold parked rows again from the beginning, with the code that is here.

    Mend the fold first, and let the tails run the mended code: they would park the rows again. Tails go on meanwhile.
    Exit code 1 when a row stays parked.
    """
    from leftfold.cli.console import amount, emit, say
    from leftfold.cli.keys import read_key
    from leftfold.cli.project import load_app
    from leftfold.cli.workbench import check_broker, folded_view_of, workbench
    from leftfold.engine.generations import resolve
    from leftfold.engine.retry import Retry

    view = folded_view_of(load_app(app), name)
    check_broker(kafka)
    wanted = [view.keys.encode(read_key(view, key)) for key in keys or ()]
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
