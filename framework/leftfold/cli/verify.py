"""`leftfold verify`: whether views hold what the log says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples
from leftfold.cli.rebuild import Engine

if TYPE_CHECKING:
    from leftfold.engine.verify import Verification

__all__ = ["EXAMPLES", "verify"]

EXAMPLES = examples(
    "leftfold verify                                every view of the App, once",
    "leftfold verify household_spend --deep         and which rows differ, field by field",
    "leftfold verify --continuous --share 5%        for ever, with a twentieth of one core",
    "leftfold verify household_spend --generation held --engine spark",
    "leftfold verify --archive /backup/log          the past from its archive, the rest from Kafka",
)


def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[VIEW]...", help="Views; else all.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Find the rows that differ.")] = False,
    generation: Annotated[
        str, typer.Option("--generation", metavar="WHICH", help="live, held, kept, a name or an id.")
    ] = "live",
    continuous: Annotated[bool, typer.Option("--continuous", help="Again and again, until Ctrl-C.")] = False,
    share: Annotated[str, typer.Option("--share", metavar="SHARE", help="Of one core, when continuous.")] = "10%",
    engine: Annotated[Engine, typer.Option("--engine", help="Where it folds.")] = Engine.LOCAL,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark's; else local[*].")] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the log again to exactly where each view stands, and compare checksums.

    Nothing is written, and tails go on meanwhile. Parked keys are left out. Exit code 3 when a view holds something
    else than the log says; build it anew then: leftfold rebuild.
    """
    from leftfold.cli.failures import Usage
    from leftfold.cli.project import load_app
    from leftfold.cli.rebuild import views_meant
    from leftfold.cli.sampling import share_of
    from leftfold.cli.verification import Verifying
    from leftfold.cli.workbench import folded_view_of

    if continuous and engine is Engine.SPARK:
        raise Usage("--continuous works in this process, with a share of one core; leave --engine spark out")
    whole = load_app(app)
    views = [folded_view_of(whole, name) for name in names or ()] or [v for v in views_meant(whole, []) if v.folded]
    work = Verifying((kafka, redis, archive), generation, deep=deep)
    if continuous:
        for result in work.for_ever(views, share_of(share)):
            _tell(result, as_json=as_json)
    code = 0
    with work.engine(engine, master):
        for view in views:
            result = work.run(view)
            _tell(result, as_json=as_json)
            code = max(code, 0 if result.equal else 3)
    raise typer.Exit(code)


def _tell(result: Verification, *, as_json: bool) -> None:
    from leftfold.cli.console import amount, emit, say
    from leftfold.cli.differing import show_rows

    if as_json:
        told: dict[str, Any] = {**result.__dict__, "equal": result.equal, "position": result.position.offsets}
        sums = {"stored": f"{result.stored:032x}", "folded": f"{result.folded:032x}"}
        emit({**told, **sums, "rows": [row.__dict__ for row in result.rows]})
        return
    verdict = "equal" if result.equal else f"differs in {amount(len(result.wrong), 'bucket')}"
    say(
        f"{result.view} {result.generation}: up to {amount(result.events, 'event')} folded in {result.seconds:.1f} s: "
        f"{verdict}, checksum {result.stored:032x}"
    )
    if result.parked:
        more = " ..." if len(result.parked) > 5 else ""
        say(f"  left out, since they are parked: {', '.join(result.parked[:5])}{more}")
    for key, why in list(result.newly.items())[:5]:
        say(f"  this code parks {key}: {why}")
    show_rows(result.rows, "stored", "folded")
    if not result.equal:
        say(f"  build it anew: leftfold rebuild {result.view} --hold, then leftfold diff {result.view}")
