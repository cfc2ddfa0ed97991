"""A step of a trace as a line of a tree, or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leftfold.engine.step import Step
from leftfold.position import Place
from leftfold.engine.trace import Node
from leftfold.moments import moment_at
from leftfold.printable import printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["fields_of", "line_of"]

_STYLES = {"command": "bold blue", "event": "bold green", "input": "cyan", "rejected": "bold red"}
_MINUTE = 60


def fields_of(node: Node, depth: int, wanted: str) -> Mapping[str, Any]:
    """A node as one object; `parent` is the id of what caused it, `after` the seconds since then."""
    step = node.step
    told: dict[str, Any] = {
        "id": node.id,
        "parent": node.parent.id if node.parent is not None else None,
        "depth": depth,
        "kind": step.kind if step is not None else "missing",
        "asked": node.id == wanted,
    }
    if step is not None:
        told |= {
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
    told |= {"told": dict(step.told)} if step is not None and step.told else {}
    told |= {"duplicates": [place._asdict() for place in node.again]} if node.again else {}
    told |= {"dead": [{**place._asdict(), "reason": why} for place, why in node.dead.items()]} if node.dead else {}
    return told | ({"loop": True} if node.is_loop else {})


def line_of(node: Node, wanted: str) -> Text:
    """A node as a line: what it is, whose, where it stands, when, and what became of it."""
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


def _what(step: Step) -> str:
    name = step.type.partition(".")[2].removesuffix(".v1") or step.type or "?"
    match step.kind:
        case "input":
            return f"{step.at.topic.rpartition('.')[0]} takes {name}"
        case "accepted" | "rejected":
            return step.kind
        case "due" | "fired" | "cancelled":
            return f"timer {step.told.get('name', '?')} {step.kind}"
        case _:
            return f"{step.kind} {name}"


def _when(node: Node, step: Step) -> str:
    after = node.after
    if after is None:
        return _clock(step.appended)
    if abs(after) < 1:
        return f"{after * 1000:+.0f} ms"
    return f"{after:+.3f} s" if abs(after) < _MINUTE else f"{after:+.0f} s"


def _remarks(node: Node, step: Step) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    told = step.told
    if step.kind == "rejected":
        found.append((f"{told.get('error', '?')}: {told.get('message', '?')}", "red"))
    if step.kind == "due" and "at" in told:
        found.append((f"at {told['at']}", ""))
    if "actor" in told:
        found.append((f"by {told['actor']}: {told.get('reason', '')}", "yellow"))
    found += [(f"dead-lettered at {place.offset}: {why}", "red") for place, why in node.dead.items()]
    if node.again:
        found.append((f"again, without effect, at {_places(node.again)}", "dim"))
    if node.is_loop:
        found.append((f"says that {step.cause} caused it, which follows from it", "red"))
    return found


def _places(places: list[Place]) -> str:
    return ", ".join(f"{place.partition}:{place.offset}" for place in places)


def _clock(milliseconds: int) -> str:
    if milliseconds <= 0:
        return ""
    return moment_at(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
