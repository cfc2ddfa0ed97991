"""`leftfold log trace`: what followed from what, across services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leftfold.cli.options import ArchiveOption, JsonOption, KafkaOption, examples

if TYPE_CHECKING:
    from leftfold.engine.trace import Trace

__all__ = ["EXAMPLES", "trace"]

EXAMPLES = examples(
    "leftfold log trace 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b      of a command, an event or a correlation",
    "leftfold log trace place-o1 --since 2h                       read only what was written since then",
    "leftfold log trace place-o1 --json | jq 'select(.kind == \"rejected\")'",
)
_WIDTH, _PER_LEVEL = 400, 4


def trace(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Of a command, an event, an input; or a correlation id.")],
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE|TIME", help="Look at nothing older: 30m, 2h, 7d or a time.")
    ] = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what caused a record and what it caused.

    Prints a tree of commands and events across services.

    Commands, events, events on their way to processes, answers, timers: each with its type, key, place and the time
    since the step before it. Refusals, dead letters, duplicates and causes that no topic holds any more are marked.
    Reads headers of all topics of the cluster, and events that these have lost in the archive; the App need not be
    here. The id that was asked for is marked with >.
    """
    from leftfold.cli.archives import archive_of
    from leftfold.cli.console import emit
    from leftfold.cli.failures import Usage
    from leftfold.cli.traceline import fields_of
    from leftfold.cli.tracing import traced
    from leftfold.engine.trace import Trace

    if not id_:
        raise Usage(
            "whose trace? give the id of a command, an event or an input; `leftfold send` tells that of a command"
        )
    found = Trace(traced(id_, since, kafka, archive_of(archive)))
    if as_json:
        for node, depth in found.walk():
            emit(fields_of(node, depth, id_))
    else:
        _show(found, id_)


def _show(found: Trace, wanted: str) -> None:
    """Draws the trees, as wide as they are: a terminal wraps, and `less -S` does not."""
    from rich.tree import Tree

    from leftfold.cli.console import draw
    from leftfold.cli.traceline import line_of

    drawn: dict[object, Tree] = {}
    deepest = 0
    for node, depth in found.walk():
        line, deepest = line_of(node, wanted), max(deepest, depth)
        drawn[node] = drawn[node.parent].add(line) if node.parent is not None else Tree(line)
    for root in found.roots:
        draw(drawn[root], _WIDTH + _PER_LEVEL * deepest)
