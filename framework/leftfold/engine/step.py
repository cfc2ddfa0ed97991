"""One record as a step of what followed from a command: read from its headers, whatever service wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from leftfold import names
from leftfold.position import Place
from leftfold.digits import number_in
from leftfold.ports import RawRecord

__all__ = ["Step", "step_of"]

_COMMANDS, _EVENTS, _DEAD = names.commands(""), names.events(""), names.dead("")
_OURS = {
    "leftfold.ack.v1": "accepted",
    "leftfold.nack.v1": "rejected",
    "leftfold.due.v1": "due",
    "leftfold.cancel.v1": "cancelled",
}
_TOLD = ("name", "at", "error", "message", "reason", "actor")
_LONGEST = 2000


@dataclass(frozen=True)
class Step:
    """What a record is and what caused it.

    `kind` is `command`, `event`, `input` (an event on its way to a process), `accepted` or `rejected` (answers to a
    process), `due`, `fired` or `cancelled` (timers: by time, or by somebody), or `other`. `at` is the place of the
    record itself: of a dead letter, whose `dead` says why, the one that it was taken from. `appended` is in ms since
    1970. `beside` is the topic in which its cause stands, '' where nobody says; `told` is what a record of the
    framework's own holds.
    """

    kind: str
    id: str
    cause: str
    correlation: str
    type: str
    key: str
    at: Place
    appended: int
    time: str
    source: str
    beside: str
    dead: str | None = None
    told: Mapping[str, str] = field(default_factory=dict)


def step_of(record: RawRecord) -> Step | None:
    """The step that a record is; None when it is no command, event or input, nor a dead letter that was one."""
    found = {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    type_, at, dead = found.get("ce_type", ""), Place(record.topic, record.partition, record.offset), None
    if record.topic.endswith(_DEAD):
        at, dead = _source(found.get("dead_source", ""), at), found.get("dead_reason", "")
    elif "ce_id" not in found:
        return None
    told = _told(record.value) if type_ in _OURS else {}
    return Step(
        kind="fired" if type_ == "leftfold.due.v1" and "actor" in told else _kind(at.topic, type_, found),
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
        dead=dead,
        told=told,
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
    """Where the cause stands: an origin says so; events follow from commands, what timers do from inputs."""
    origin = found.get("origin", "").rsplit("/", 3)
    if len(origin) == len(("topic", "partition", "offset", "index")):
        return origin[0]
    if topic.endswith(_EVENTS):
        return names.commands(topic.removesuffix(_EVENTS))
    return topic if type_ in _OURS else ""


def _source(text: str, at: Place) -> Place:
    """The place `topic/partition/offset` that a dead letter names; its own when it does not."""
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.partition("/")
    p, o = number_in(partition), number_in(offset)
    return at if p is None or o is None else Place(topic, p, o)


def _told(value: bytes | None) -> dict[str, str]:
    try:
        fields = json.loads(value or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(fields, dict):
        return {}
    return {name: str(fields[name])[:_LONGEST] for name in _TOLD if name in fields}
