"""`leftfold promote` and `leftfold rollback`: change which generation readers see."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import (
    AppOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    KeepOption,
    RedisOption,
    examples,
    note_options,
)
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.runtime.console import amount, emit, say, shown
from leftfold.runtime.operations.generations import promote_generation
from leftfold.runtime.project import load_app
from leftfold.runtime.servers import Servers

__all__ = ["PROMOTE_EXAMPLES", "ROLLBACK_EXAMPLES", "promote", "rollback"]

PROMOTE_EXAMPLES = examples(
    "leftfold promote household_spend                       the one that `rebuild --hold` made goes live",
    "leftfold promote household_spend --generation 4-ab12",
)
ROLLBACK_EXAMPLES = examples(
    "leftfold rollback household_spend                      back to the rows before the last swap, kept up to date"
)


def promote(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    generation: Annotated[
        str, typer.Option("--generation", metavar="ID", help="Which one, if not the held one.")
    ] = "held",
    keep: KeepOption = 600.0,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show readers the generation that was held back.

    It goes live when it is as far as the generation that readers see now, so that no reader goes back in time. The
    replaced one is kept for a rollback, for --keep. Exit code 78 when only projectors of other code than that
    of the generation run: it would stand still. `--generation live` gives the live one back to projectors of this code.
    """
    _swap(view, generation, app, (kafka, redis, archive), keep=keep, as_json=as_json)


def rollback(
    view: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    keep: KeepOption = 600.0,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show readers the generation that was live before.

    Projectors of the code that folded it keep it up to date, and continue with it. Exit code 78 when only projectors of
    other code run: start those of its code first. A second rollback takes the first one back. Where code was exchanged
    without a rebuild and is exchanged back, its projectors continue with the generation that readers see now.
    """
    _swap(view, "kept", app, (kafka, redis, archive), keep=keep, as_json=as_json)


def _swap(name: str, generation: str, app: str, servers: Servers, *, keep: float, as_json: bool) -> None:
    whole = load_app(app, having=[name])
    with shown(name) as report:
        result = promote_generation(whole, name, generation, servers, keep=keep, report=report)
    _tell(result, keep, as_json=as_json)
    if result.kept and not as_json:
        note_options(f"leftfold rollback {result.view}", [app], *servers)


def _tell(result: RebuildResult, keep: float, *, as_json: bool) -> None:
    if as_json:
        fields = {name: getattr(result, name) for name in ("view", "generation", "kept", "rows", "swapped")}
        emit({**fields, "agreement": result.agreement.value})
        return
    say(f"{result.view}: readers see {result.generation} now, {amount(result.rows, 'row')}")
    if result.predecessor:
        say(f"  its rows and those of {result.predecessor}: {result.agreement.value}")
    if result.kept:
        say(f"  {result.kept} is kept for {keep:g} s; back to it: leftfold rollback {result.view}")
