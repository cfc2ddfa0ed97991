"""`leftfold log trace`: prints what caused a record and what it caused, across services."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import ArchiveOption, JsonOption, KafkaOption, examples, read_time
from leftfold.engine.causation import Trace, TraceNode, TraceStep
from leftfold.model.position import RecordAddress
from leftfold.model.state_codec import time_at
from leftfold.runtime.console import draw, emit, shown
from leftfold.runtime.operations.traces import traced
from leftfold.runtime.project import Usage, archive_of
from leftfold.safety import printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["EXAMPLES", "fields_of", "line_of", "trace"]


EXAMPLES = examples(
    "leftfold log trace 0199a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b      of a command, an event or a correlation",
    "leftfold log trace place-o1 --since 2h                       read only what was written since then",
    "leftfold log trace place-o1 --json | jq 'select(.kind == \"rejected\")'",
)
_WIDTH, _PER_LEVEL = 400, 4


def trace(
    id_: Annotated[str, typer.Argument(metavar="ID", help="Of a command, an event, an input; or a correlation id.")],
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", metavar="AGE|TIME", parser=read_time, help="Read no older records: 30m, 2h, 7d or a time."
        ),
    ] = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what caused a record and what it caused.

    Prints a tree of commands and events across services.

    Commands, events, events on their way to processes, answers, timers: each with its type, key, address and the time
    since the step before it. Refusals, dead letters, duplicates and causes that no topic holds any more are marked.
    Reads headers of all topics of the cluster, and from the archive the events that topics have lost; no App is needed.
    The requested id is marked with >.
    """
    if not id_:
        raise Usage(
            "whose trace? give the id of a command, an event or an input; `leftfold send` prints that of a command"
        )
    with shown("trace") as report:
        found = Trace(traced(id_, since, kafka, archive_of(archive), report=report))
    if as_json:
        for node, depth in found.walk():
            emit(fields_of(node, depth, id_))
    else:
        _show(found, id_)


def _show(found: Trace, wanted: str) -> None:
    """Draws the trees at full width: a terminal wraps long lines, and `less -S` does not."""
    from rich.tree import Tree

    drawn: dict[object, Tree] = {}
    deepest = 0
    for node, depth in found.walk():
        line, deepest = line_of(node, wanted), max(deepest, depth)
        drawn[node] = drawn[node.parent].add(line) if node.parent is not None else Tree(line)
    for root in found.roots:
        draw(drawn[root], _WIDTH + _PER_LEVEL * deepest)


_STYLES = {"command": "bold blue", "event": "bold green", "input": "cyan", "rejected": "bold red"}
_MINUTE = 60


def fields_of(node: TraceNode, depth: int, wanted: str) -> Mapping[str, Any]:
    """A node as a JSON object; `parent` is the id of its cause, `after` the seconds since that."""
    step = node.step
    fields: dict[str, Any] = {
        "id": node.id,
        "parent": node.parent.id if node.parent is not None else None,
        "depth": depth,
        "kind": step.kind if step is not None else "missing",
        "asked": node.id == wanted,
    }
    if step is not None:
        fields |= {
            "type": step.type,
            "key": step.key,
            **step.at._asdict(),
            "appended": _clock(step.appended) or None,
            "after": node.after,
            "time": step.time,
            "correlation_id": step.correlation,
            "causation_id": step.cause or None,
            "source": step.source,
            "principal": step.principal or None,
        }
    if step is not None and step.details:
        fields.update(details=dict(step.details))
    fields |= {"duplicates": [place._asdict() for place in node.again]} if node.again else {}
    fields |= {"dead": [{**place._asdict(), "reason": why} for place, why in node.dead.items()]} if node.dead else {}
    return fields | ({"loop": True} if node.is_loop else {})


def line_of(node: TraceNode, wanted: str) -> Text:
    """A node as a line: type, key, address, time, and what happened to the record."""
    from rich.text import Text

    line = Text(overflow="ignore", no_wrap=True)
    step = node.step
    if node.id == wanted:
        line.append("> ", "bold yellow")
    if step is None:
        line.append(printable(f"{node.id} is not in the log"), "dim italic")
        return line
    line.append(printable(_what(step)), _STYLES.get(step.kind, "magenta"))
    line.append(printable(f" {step.key}"), "bold yellow" if node.id == wanted else "")
    line.append(f"  {step.at}", "dim")
    line.append(f"  {_when(node, step)}")
    for remark, style in _remarks(node, step):
        line.append(printable(f"  {remark}"), style)
    line.append(printable(f"  {node.id}"), "dim")
    return line


def _what(step: TraceStep) -> str:
    name = step.type.partition(".")[2].removesuffix(".v1") or step.type or "?"
    match step.kind:
        case "input":
            return f"{step.at.topic.rpartition('.')[0]} takes {name}"
        case "accepted" | "rejected":
            return step.kind
        case "due" | "fired" | "cancelled":
            timer = step.details.get("name", "?")
            return f"timer {timer} {step.kind}"
        case _:
            return f"{step.kind} {name}"


def _when(node: TraceNode, step: TraceStep) -> str:
    after = node.after
    if after is None:
        return _clock(step.appended)
    if abs(after) < 1:
        return f"{after * 1000:+.0f} ms"
    return f"{after:+.3f} s" if abs(after) < _MINUTE else f"{after:+.0f} s"


def _remarks(node: TraceNode, step: TraceStep) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    details = step.details
    if step.principal:
        found.append((f"for {step.principal}", "yellow"))
    if step.kind == "rejected":
        found.append((f"{details.get('error', '?')}: {details.get('message', '?')}", "red"))
    if step.kind == "due" and "at" in details:
        found.append((f"at {details['at']}", ""))
    if "actor" in details:
        found.append((f"by {details['actor']}: {details.get('reason', '')}", "yellow"))
    found += [(f"dead-lettered at {place.offset}: {why}", "red") for place, why in node.dead.items()]
    if node.again:
        found.append((f"again, without effect, at {_places(node.again)}", "dim"))
    if node.is_loop:
        found.append((f"says that {step.cause} caused it, which follows from it", "red"))
    return found


def _places(places: list[RecordAddress]) -> str:
    return ", ".join(f"{place.partition}:{place.offset}" for place in places)


def _clock(milliseconds: int) -> str:
    if milliseconds <= 0:
        return ""
    return time_at(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
