"""`leftfold log trace`: prints what caused a record and what it caused, across services."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import ArchiveOption, JsonOption, KafkaOption, examples, read_time
from leftfold.engine.archive.gaps import offsets_for_time
from leftfold.engine.causation import TraceNode, TraceStep, id_time, search, step_of
from leftfold.engine.progress import Stopwatch
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model import keys as names
from leftfold.model.encoding import time_at
from leftfold.model.position import Position, RecordAddress
from leftfold.runtime.connect import kafka_settings, open_archive, open_reader
from leftfold.runtime.console import amount, note, shown
from leftfold.runtime.project import Usage
from leftfold.safety import printable

if TYPE_CHECKING:
    from rich.text import Text

    from leftfold.engine.causation import Trace

__all__ = ["ASTRAY", "EXAMPLES", "fields_of", "line_of", "trace", "traced"]


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
    from leftfold.engine.causation import Trace
    from leftfold.runtime.console import emit
    from leftfold.runtime.project import Usage, archive_of

    if not id_:
        raise Usage(
            "whose trace? give the id of a command, an event or an input; `leftfold send` prints that of a command"
        )
    found = Trace(traced(id_, since, kafka, archive_of(archive)))
    if as_json:
        for node, depth in found.walk():
            emit(fields_of(node, depth, id_))
    else:
        _show(found, id_)


def _show(found: Trace, wanted: str) -> None:
    """Draws the trees at full width: a terminal wraps long lines, and `less -S` does not."""
    from rich.tree import Tree

    from leftfold.runtime.console import draw

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
        }
    if step is not None and step.told:
        fields.update(told=dict(step.told))
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
            timer = step.told.get("name", "?")
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
    details = step.told
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


ASTRAY = timedelta(days=1)
"""Largest clock error that the search allows for: it starts this much before the time in an id."""

_KINDS = (names.commands(""), names.events(""), names.dead(""))
_NAMED = 12
_LATEST = 1 << 47


def traced(id_: str, since: datetime | None, kafka: str | None, archive: str = "") -> list[TraceStep]:
    """Every step of the correlation that an id belongs to, across all services of the cluster.

    Args:
        since: records appended before are not read. None = from the beginning.
        archive: the archive with events that topics have lost; '' = none.

    Raises:
        Usage: nothing has this id.
    """
    settings = kafka_settings(kafka)
    with ClusterAdmin(settings) as cluster:
        topics = sorted(topic for topic in cluster.topics() if topic.endswith(_KINDS))
        beginning = _Beginning(cluster, archive)
        starts = beginning.of(topics, since)
        ends: Position = cluster.ends(topics)

        def begun(id_: str) -> Position:
            """Where to start for an id that contains its time of creation."""
            made = id_time(id_) if since is None else None
            return starts if made is None else beginning.of(topics, min(_utc(made), datetime.now(UTC)) - ASTRAY)

        with closing(open_reader(settings, archive)()) as reader, shown("trace") as report:
            watch = Stopwatch(report)
            found = search(reader, id_, starts, ends, begun=begun, watch=watch)
            watch.end()
    if found.is_short:
        note("some of the newest records could not be read: no broker answers, or a transaction is open before them")
    steps = [step for record in found.records if (step := step_of(record)) is not None]
    if not any(id_ in (step.id, step.correlation) for step in steps):
        raise _unknown(id_, found.looked, topics, since)
    return steps


class _Beginning:
    """Start positions of a search: a topic alone has commands, an archive also has events that the topic has lost."""

    def __init__(self, cluster: Any, archive: str) -> None:
        self._cluster, self._open = cluster, open_archive(archive)

    def of(self, topics: list[str], begin: datetime | None) -> Position:
        """The first records that exist, or the first since a time."""
        return Position.union(self._of(topic, begin) for topic in topics)

    def _of(self, topic: str, begin: datetime | None) -> Position:
        starts: Position = self._cluster.starts([topic])
        kept = self._open().ends(topic) if self._open is not None and any(starts.offsets[topic].values()) else {}
        whole = all(kept.get(p, 0) >= start for p, start in starts.offsets[topic].items())
        if begin is None:
            return Position({topic: dict.fromkeys(starts.offsets[topic], 0)}) if kept and whole else starts
        milliseconds = int(begin.timestamp() * 1000)
        if kept and whole:
            return offsets_for_time(self._cluster, topic, milliseconds, self._open)
        found: Position = self._cluster.starts_at(topic, milliseconds)
        return found


def _unknown(id_: str, looked: int, topics: list[str], since: datetime | None) -> Usage:
    more = f" and {len(topics) - _NAMED} more topics" if len(topics) > _NAMED else ""
    where = (
        f"{amount(looked, 'record')} of {', '.join(topics[:_NAMED])}{more}" if topics else "a cluster without topics"
    )
    wider = "say a longer --since, or leave it out" if since is not None else "commands are kept for a week only"
    return Usage(
        f"no command, event or correlation has the id {id_!r}; searched {where}. {wider[0].upper()}{wider[1:]}; ids "
        f"are listed by: leftfold events CATEGORY --json"
    )


def _utc(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(milliseconds, _LATEST))
