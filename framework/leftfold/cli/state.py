"""`leftfold state`: what deciders remember of their streams."""

from __future__ import annotations

from typing import Annotated

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, examples
from leftfold.cli.rebuild import Engine

__all__ = ["EXAMPLES", "state", "verify"]

EXAMPLES = examples(
    "leftfold state verify                   every decider of the App",
    "leftfold state verify baskets --json    one of them; differing streams as NDJSON",
)

state = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after the states of streams.")


@state.command(epilog=EXAMPLES)
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CATEGORY]...", help="Deciders; else all.")] = None,
    engine: Annotated[Engine, typer.Option("--engine", help="Where partitions are folded.")] = Engine.LOCAL,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark's; else local[*].")] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every stream's state with the fold of its events.

    Exit code 3 when they differ; the state topic may then be deleted, and workers fold it again from the events.
    """
    from leftfold.cli.console import amount, emit, say
    from leftfold.cli.parts import chosen
    from leftfold.cli.progress import shown
    from leftfold.cli.project import load_app
    from leftfold.cli.verifying import checked

    whole = load_app(app, having=names or ())
    wrong = 0
    for decider in chosen(whole, names or []).deciders:
        with shown(f"{decider.name} states") as report:
            checks = checked(decider, kafka, archive, on_spark=engine is Engine.SPARK, master=master, report=report)
        differences = [difference for check in checks for difference in check.differences]
        wrong += len(differences)
        streams, events = sum(check.streams for check in checks), sum(check.events for check in checks)
        if as_json:
            emit({"category": decider.name, "streams": streams, "events": events, "differences": len(differences)})
            for difference in differences:
                emit({"category": decider.name, **difference.__dict__})
            continue
        verdict = "all agree" if not differences else f"{amount(len(differences), 'stream')} differ"
        say(f"{decider.name}: {amount(streams, 'stream')} against {amount(events, 'event')}: {verdict}")
        for difference in differences[:10]:
            say(f"  {difference.key} (partition {difference.partition})")
            say(f"    state topic  {difference.found}\n    events       {difference.expected}")
    raise typer.Exit(3 if wrong else 0)
