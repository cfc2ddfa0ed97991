"""The causation tree of records, found by their headers in two passes over the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from leftfold.engine.progress import Stopwatch
from leftfold.errors import ContractError
from leftfold.model import keys as names
from leftfold.model.position import Position, RecordAddress
from leftfold.ports.bulk import read_to
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["FoundRecords", "Trace", "TraceNode", "TraceStep", "id_time", "search", "step_of"]


_COMMANDS, _EVENTS, _DEAD = names.commands(""), names.events(""), names.dead("")
_OURS = {
    "leftfold.ack.v1": "accepted",
    "leftfold.nack.v1": "rejected",
    "leftfold.due.v1": "due",
    "leftfold.cancel.v1": "cancelled",
}
_SHOWN = ("name", "at", "error", "message", "reason", "actor")
_LONGEST = 2000


@dataclass(frozen=True)
class TraceStep:
    """One record in a trace: what it is and what caused it.

    `kind` is `command`, `event`, `input` (an event routed to a process), `accepted` or `rejected` (answers to a
    process), `due`, `fired` or `cancelled` (timers: by time, or by an operator), or `other`. `at` is the place of the
    record itself; for a dead letter, whose reason is `dead`, the place it was taken from. `appended` is in ms since
    1970. `beside` is the topic of its cause, and `principal` on whose behalf it was written, '' if unknown; the last
    field holds the fields of a record that the framework itself wrote.
    """

    kind: str
    id: str
    cause: str
    correlation: str
    type: str
    key: str
    at: RecordAddress
    appended: int
    time: str
    source: str
    beside: str
    principal: str = ""
    dead: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)


def step_of(record: RawRecord) -> TraceStep | None:
    """The trace step of a record. None when it is no command, event or input, nor a dead letter of one."""
    found = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    type_, at, dead = found.get("ce_type", ""), record.address, None
    if record.topic.endswith(_DEAD):
        at, dead = _source(found.get("dead_source", ""), at), found.get("dead_reason", "")
    elif "ce_id" not in found:
        return None
    details = _shown_fields(record.value) if type_ in _OURS else {}
    return TraceStep(
        kind="fired" if type_ == "leftfold.due.v1" and "actor" in details else _kind(at.topic, type_, found),
        id=found.get("ce_id", ""),
        cause=found.get("ce_causationid", ""),
        correlation=found.get("ce_correlationid") or found.get("ce_id", ""),
        type=type_,
        key=(record.key or b"").decode(errors="replace"),
        at=at,
        appended=record.time,
        time=found.get("ce_time", ""),
        source=found.get("ce_source", ""),
        beside=_beside(at.topic, type_, found),
        principal=found.get("ce_authid", ""),
        dead=dead,
        details=details,
    )


def _kind(topic: str, type_: str, found: Mapping[str, str]) -> str:
    if type_ in _OURS:
        return _OURS[type_]
    if topic.endswith(_EVENTS):
        return "event"
    if not topic.endswith(_COMMANDS):
        return "other"
    return "input" if "origin" in found and "reply_to" not in found else "command"


def _beside(topic: str, type_: str, found: Mapping[str, str]) -> str:
    """The topic of the cause: named by an origin; events follow from commands, and timer effects from inputs."""
    origin = found.get("origin", "").rsplit("/", 3)
    if len(origin) == len(("topic", "partition", "offset", "index")):
        return origin[0]
    if topic.endswith(_EVENTS):
        return names.commands(topic.removesuffix(_EVENTS))
    return topic if type_ in _OURS else ""


def _source(text: str, at: RecordAddress) -> RecordAddress:
    """The place that a dead letter names; `at` when it names none."""
    try:
        return RecordAddress.from_source(text)
    except ContractError:
        return at


def _shown_fields(value: bytes | None) -> dict[str, str]:
    try:
        fields = json.loads(value or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    return {name: str(fields[name])[:_LONGEST] for name in _SHOWN if name in fields}


_Name = tuple[str, str]
"""A topic and an id: one id may be used for commands of several categories."""


@dataclass(eq=False)
class TraceNode:
    """One step of a trace with the steps that followed from it.

    `step` is None where records name a cause that no topic holds; `again` are further records of the same id in the
    same topic, which have no effect; `dead` is why one of them was dead-lettered, by its place.
    """

    id: str
    step: TraceStep | None = None
    parent: TraceNode | None = None
    children: list[TraceNode] = field(default_factory=list)
    again: list[RecordAddress] = field(default_factory=list)
    dead: dict[RecordAddress, str] = field(default_factory=dict)
    is_loop: bool = False

    @property
    def after(self) -> float | None:
        """Seconds since the causing record was appended; None = it has no cause, or a time is unknown."""
        before = self.parent.step if self.parent is not None else None
        if self.step is None or before is None or not self.step.appended or not before.appended:
            return None
        return (self.step.appended - before.appended) / 1000

    def order(self) -> tuple[int, RecordAddress]:
        """The sort key of nodes: when and where they were written."""
        if self.step is not None:
            return self.step.appended, self.step.at
        return min((child.order() for child in self.children), default=(0, RecordAddress("", 0, 0)))


class Trace:
    """The causation trees of some steps; `roots` are those without a cause, the earliest first."""

    def __init__(self, steps: Iterable[TraceStep]) -> None:
        self._nodes: dict[_Name, TraceNode] = {}
        self._by_id: dict[str, list[TraceNode]] = {}
        self._gather(list({(step.at, step.dead): step for step in steps}.values()))
        for node in list(self._nodes.values()):
            self._attach(node)
        self.roots = sorted(self._tops(), key=TraceNode.order)
        for node, _ in self.walk():
            node.children.sort(key=TraceNode.order)

    def walk(self) -> Iterator[tuple[TraceNode, int]]:
        """Every node with its depth, causes before their effects."""
        left = [(root, 0) for root in reversed(self.roots)]
        while left:
            node, depth = left.pop()
            yield node, depth
            left += [(child, depth + 1) for child in reversed(node.children)]

    def _gather(self, steps: list[TraceStep]) -> None:
        """Makes one node per topic and id: the first record in its partition, with its dead letters."""
        homes: dict[RecordAddress, TraceNode] = {}
        for step in sorted((s for s in steps if s.id), key=lambda s: (s.dead is not None, s.at, s.appended)):
            name = step.at.topic, step.id
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = TraceNode(step.id, step)
                self._by_id.setdefault(step.id, []).append(node)
            elif step.dead is None:
                node.again.append(step.at)
            homes[step.at] = node
        for step in steps:
            if step.dead is not None and step.at in homes:
                homes[step.at].dead[step.at] = step.dead

    def _attach(self, node: TraceNode) -> None:
        """Puts a node under its cause; creates an empty node when no topic holds the cause."""
        if node.step is None or not node.step.cause:
            return
        cause, beside = node.step.cause, node.step.beside
        parent = self._nodes.get((beside, cause))
        if parent is None:
            others = sorted((n for n in self._by_id.get(cause, ()) if n is not node), key=TraceNode.order)
            parent = others[0] if others else TraceNode(cause)
            self._nodes.setdefault((beside, cause), parent)
        node.parent = parent
        parent.children.append(node)

    def _tops(self) -> list[TraceNode]:
        """The nodes without a parent, and the earliest of each loop, cut off from its recorded cause."""
        nodes = list(dict.fromkeys(self._nodes.values()))
        tops = [node for node in nodes if node.parent is None]
        seen = _below(tops)
        for node in nodes:
            if node in seen:
                continue
            first = min(_loop_above(node), key=TraceNode.order)
            if first.parent is not None:
                first.parent.children.remove(first)
            first.parent, first.is_loop = None, True
            tops.append(first)
            seen |= _below([first])
        return tops


def _below(tops: Iterable[TraceNode]) -> set[TraceNode]:
    seen: set[TraceNode] = set()
    left = list(tops)
    while left:
        node = left.pop()
        seen.add(node)
        left += node.children
    return seen


def _loop_above(node: TraceNode) -> list[TraceNode]:
    """The loop that a node's causes lead into."""
    visited: dict[TraceNode, int] = {}
    at: TraceNode | None = node
    while at is not None and at not in visited:
        visited[at] = len(visited)
        at = at.parent
    start = visited[at] if at is not None else 0
    return [one for one, number in visited.items() if number >= start]


_PATIENCE = 15.0
_BY_REFERENCE = ("dead_reference", b"true")
_TIMED, _AHEAD = 7, 3_600_000

Begun = Callable[[str], Position]
"""The position from which to search for an id, or for what follows from it."""


@dataclass(frozen=True)
class FoundRecords:
    """The records of a trace, how many were read, and whether some before the end could not be read."""

    records: tuple[RawRecord, ...]
    looked: int
    is_short: bool = False


def id_time(id_: str) -> int | None:
    """When an id was made, in ms since 1970, if it is a uuid7 as clients make them; None otherwise."""
    try:
        id = UUID(id_)
    except ValueError:
        return None
    return id.int >> 80 if id.version == _TIMED else None


def search(
    reader: LogReader,
    id_: str,
    starts: Position,
    ends: Position,
    *,
    begun: Begun | None = None,
    watch: Stopwatch | None = None,
    patience: float = _PATIENCE,
) -> FoundRecords:
    """All records of the correlation that an id belongs to. The id may be a correlation id or that of any record.

    The first pass looks for the id. If a record that has it belongs to another correlation, a second pass looks for
    that one; a correlation id, such as the id of a client's command, needs no second pass.

    Args:
        begun: where passes may begin, given the time in an id. If something is missing then that may stand before that
            place, the whole log is searched after all; clocks may be wrong.
        watch: reports the passes.
        patience: seconds to wait for records that an open transaction hides.
    """
    reading = _Reading(reader, starts, ends, watch or Stopwatch(lambda progress: None), patience)
    if begun is not None:
        found = reading.trace(id_, begun)
        if _is_whole(found.records, reading.begin, starts):
            return found
    return reading.trace(id_, lambda id_: starts)


def _is_whole(records: tuple[RawRecord, ...], begin: Position, starts: Position) -> bool:
    """Whether no missing record can stand before the place where the pass began.

    An effect is written behind its cause, so a trace with all causes is complete. The exception is a command that was
    sent again by a clock that is ahead: one that is an hour ahead may be ahead by more.
    """
    if begin == starts:
        return True
    steps = [step for record in records if (step := step_of(record)) is not None]
    ids = {step.id for step in steps}
    missing = [step for step in steps if step.cause and step.cause not in ids]
    cut = [step for step in missing if begin.offsets.get(step.beside) != starts.offsets.get(step.beside)]
    ahead = [step for step in steps if step.appended < (id_time(step.correlation) or 0) - _AHEAD]
    return bool(ids) and not cut and not ahead


class _Reading:
    """Passes over a range of the log; `begin` is where the last one began."""

    def __init__(self, reader: LogReader, starts: Position, ends: Position, watch: Stopwatch, patience: float) -> None:
        self._reader, self.begin, self._ends, self._watch, self._patience = reader, starts, ends, watch, patience
        self._looked, self._is_short = 0, False

    def trace(self, id_: str, begun: Begun) -> FoundRecords:
        """All records of the correlation of an id, with each pass begun as late as possible."""
        wanted, self.begin = {id_.encode()}, begun(id_)
        while True:
            found, more = self._pass(wanted)
            if not more:
                return FoundRecords(tuple(found), self._looked, self._is_short)
            wanted, self.begin = wanted | more, begun(next(iter(more)).decode(errors="replace"))

    def _pass(self, wanted: set[bytes]) -> tuple[list[RawRecord], set[bytes]]:
        """The records of some correlations; or, as soon as a record belongs to another correlation, that one."""
        pairs = {("ce_correlationid", one) for one in wanted}
        telling = {*pairs, *(("ce_id", one) for one in wanted), _BY_REFERENCE}
        found: list[RawRecord] = []
        for record in self._records():
            if telling.isdisjoint(record.headers):
                continue
            found.append(record)
            if _BY_REFERENCE not in record.headers and pairs.isdisjoint(record.headers):
                more = {header(record.headers, "ce_correlationid")} - {b""} - wanted
                if more:
                    return found, more
        return found, set()

    def _records(self) -> Iterator[RawRecord]:
        """Reads the records of one pass, up to the ends or to where nothing more can be read."""
        starts = self.begin
        self._watch.begin("search", self._ends.ahead_of(starts))
        self._looked = 0
        for records in read_to(self._reader, starts, self._ends, patience=self._patience):
            self._looked += len(records)
            self._watch.tell(len(records))
            yield from records
        self._is_short = self._is_short or not self._reader.position().covers(self._ends)
