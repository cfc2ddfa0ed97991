"""`leftfold reactions`: begins a reaction at chosen offsets, and lists its parked events."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, JsonOption, KafkaOption, YesOption, agreed, examples, read_time
from leftfold.kafka.reactions.start_offsets import StartOffsets
from leftfold.model.app import App
from leftfold.model.reaction import Reaction
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import emit, note, say, table
from leftfold.runtime.operations.reactions import parked_events
from leftfold.runtime.project import load_app, note_apps, unknown

__all__ = ["BEGIN_EXAMPLES", "PARKED_EXAMPLES", "begin", "parked", "reactions"]

BEGIN_EXAMPLES = examples(
    "leftfold reactions begin receipts --since end                     act on what happens from now on",
    "leftfold reactions begin receipts --since 2026-11-01T12:00:00Z    and on what was appended since then, again",
)
PARKED_EXAMPLES = examples("leftfold reactions parked receipts", "leftfold retry receipts      try them once more")

reactions = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Begin reactions; list their parked events.")


def _since(text: str) -> str | datetime:
    return text if text in ("end", "start") else read_time(text)


@reactions.command(epilog=BEGIN_EXAMPLES)
def begin(
    name: Annotated[str, typer.Argument(metavar="REACTION", help="Its name.")],
    since: Annotated[
        Any,
        typer.Option(
            "--since", metavar="TIME", parser=_since, help="end, start, or when events were appended: a time, 2h."
        ),
    ],
    yes: YesOption = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a reaction, or move it to other offsets.

    Events behind these offsets are acted on, a second time if they were before, with the same idempotency keys; events
    before them never are. No process of the reaction may run meanwhile.
    """
    whole = load_app(app, having=[name])
    beginnings = StartOffsets(whole, _named(whole, name), kafka_settings(kafka))
    agreed(f"have reaction {name} go on at {since}, and act on all that lies behind it?", yes=yes)
    offsets: dict[tuple[str, int], int] = beginnings.again(since)
    if as_json:
        emit({"reaction": name, "offsets": {f"{topic}/{p}": offset for (topic, p), offset in offsets.items()}})
    else:
        for (topic, partition), offset in sorted(offsets.items()):
            say(f"{topic}[{partition}] continues at {offset}")


@reactions.command(epilog=PARKED_EXAMPLES)
def parked(
    name: Annotated[str, typer.Argument(metavar="REACTION", help="Its name.")],
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parked events and the reason of each.

    Exit code 1 when there are some.
    """
    reaction = _named(load_app(app, having=[name]), name)
    rows = parked_events(reaction.name, kafka)
    if as_json:
        emit(*rows)
    else:
        table(rows, ("event", "type", "key", "tries", "why"))
        remark = f"when the cause is fixed: leftfold retry {name}" if rows else "nothing is parked"
        note(remark)
        note_apps(remark, [app])
    raise typer.Exit(1 if rows else 0)


def _named(app: App, name: str) -> Reaction[Any]:
    """The reaction of a name."""
    known = {reaction.name: reaction for reaction in app.reactions}
    if name not in known:
        raise unknown(f"reaction in app {app.name} called", name, known)
    return known[name]
