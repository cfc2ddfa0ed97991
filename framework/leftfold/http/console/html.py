"""HTML of the console as text: escaped tags, tables, commands to copy, differences, and graphs drawn as SVG."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_jsonable_python

from leftfold.runtime.console import lasting

__all__ = [
    "Edge",
    "Html",
    "Node",
    "age_text",
    "changes",
    "command",
    "commands_in",
    "course_of",
    "details",
    "difference",
    "drawn_graph",
    "joined",
    "json_text",
    "number_text",
    "pairs",
    "sentence",
    "table",
    "tag",
    "time_text",
]


class Html(str):
    """Text that is HTML already; any other text is escaped by `tag`."""

    __slots__ = ()

    def __add__(self, other: str) -> Html:
        return joined((self, other))


_VOID = frozenset({"br", "hr", "rect", "path", "circle"})


def tag(name: str, *children: object, **attributes: object) -> Html:
    """An element. In names of attributes `_` stands for `-` and `cls` for `class`; those that are None are left out."""
    named = {"cls": "class", "for_": "for"}
    given = "".join(
        f' {named.get(key, key.replace("_", "-"))}="{html.escape(_sendable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{given}/>" if name not in ("br", "hr") else f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """Several parts one after another, text among them escaped."""
    return Html(
        "".join(part if isinstance(part, Html) else html.escape(_sendable(str(part)), quote=False) for part in parts)
    )


def _sendable(text: str) -> str:
    """Text without lone surrogates, which JSON in the log may hold and no browser can be sent."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


_COMMAND = re.compile(r"leftfold [a-z](?:'[^']*'|\"[^\"$`\\]*\"|[^;,.()\"'|&<>$`\\\r\n]|[.,](?=\S))*")
"""A command line ends where a shell would begin another one: errors quote text from the log, and lines are copied."""


def commands_in(text: str) -> list[str]:
    """The command lines of `leftfold` that a sentence names."""
    return [found[0].strip() for found in _COMMAND.finditer(text)]


def command(line: str) -> Html:
    """A command line with a button that copies it."""
    label = f"Copy: {line}"
    return tag(
        "span",
        tag("code", line),
        tag("button", "copy", type="button", cls="lf-copy", data_copy=line, aria_label=label),
        cls="lf-command",
    )


def sentence(text: str) -> Html:
    """A sentence in which every command line can be copied."""
    parts: list[object] = []
    last = 0
    for found in _COMMAND.finditer(text):
        line = found[0].rstrip()
        parts += [text[last : found.start()], command(line)]
        last = found.start() + len(line)
    return joined([*parts, text[last:]])


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, label: str, empty: str = "none") -> Html:
    """A table; on a phone each row becomes a block of names and values.

    Args:
        columns: the headings; a `#` at the end aligns numbers to the right.
        label: what the table holds, for screen readers. empty: what is shown without rows.
    """
    listed = [list(row) for row in rows]
    if not listed:
        return tag("p", empty, cls="lf-empty")
    names = [column.rstrip("#") for column in columns]
    classes = ["lf-number" if column.endswith("#") else None for column in columns]
    head = tag("tr", *(tag("th", name, scope="col", cls=cls) for name, cls in zip(names, classes, strict=True)))
    body = [
        tag(
            "tr",
            *(
                tag("td", tag("span", "–" if cell in ("", None) else cell), data_label=name or None, cls=cls)
                for name, cls, cell in zip(names, classes, row, strict=True)
            ),
        )
        for row in listed
    ]
    return tag("table", tag("thead", head), tag("tbody", *body), cls="lf-table", aria_label=label)


def pairs(values: Mapping[str, object]) -> Html:
    """Names with their values, one pair in each line."""
    items = [tag("dt", name) + tag("dd", "–" if value in ("", None) else value) for name, value in values.items()]
    return tag("dl", *items, cls="lf-facts")


def json_text(value: Any) -> str:
    """A value as indented JSON."""
    return _sendable(json.dumps(to_jsonable_python(value, fallback=str), indent=2, ensure_ascii=False))


def details(summary: str, value: Any) -> Html:
    """A value as JSON that is shown when its summary is opened."""
    return tag("details", tag("summary", summary), tag("pre", json_text(value), tabindex="0"))


Change = tuple[str, Any, Any]


def changes(before: Any, after: Any, path: str = "") -> list[Change]:
    """The fields that differ between two JSON values, by their path; None stands for a field that is not there."""
    if before == after:
        return []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        names = [*before, *(name for name in after if name not in before)]
        pairs = [(f"{path}.{name}" if path else str(name), before.get(name), after.get(name)) for name in names]
    elif isinstance(before, list) and isinstance(after, list):
        longest = range(max(len(before), len(after)))
        pairs = [(f"{path}[{n}]", _at(before, n), _at(after, n)) for n in longest]
    else:
        return [(path or "value", before, after)]
    return [change for name, one, other in pairs for change in changes(one, other, name)]


def _at(values: list[Any], number: int) -> Any:
    return values[number] if number < len(values) else None


_FIELDS = 200
"""Most fields of a difference that are shown."""


def difference(before: Any, after: Any, *, label: str, names: tuple[str, str] = ("before", "after")) -> Html:
    """A table of the fields that differ between two JSON values, up to 200 of them."""
    found = changes(before, after)
    rows = [
        (
            tag("code", path),
            tag("del", _short(one)) if one is not None else "",
            tag("ins", _short(other)) if other is not None else "",
        )
        for path, one, other in found[:_FIELDS]
    ]
    more = f"{len(found) - _FIELDS:,} other fields differ, too" if len(found) > _FIELDS else ""
    changed = table(("field", *names), rows, label=label, empty="nothing changes")
    return changed + tag("p", more, cls="lf-quiet") if more else changed


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:400]}…"


def time_text(moment: datetime | str | float | None) -> Html:
    """A time with its age; text is RFC 3339, a number is milliseconds since 1970. What is no time is shown as it is."""
    if moment in (None, "", 0):
        return Html("")
    try:
        if isinstance(moment, int | float):
            moment = datetime.fromtimestamp(moment / 1000, UTC)
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        age = (datetime.now(UTC) - found).total_seconds()
        exact = found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, TypeError, OverflowError, OSError):
        return joined([moment])
    ago = f"{lasting(age)} ago" if age >= 0 else f"in {lasting(-age)}"
    return tag("time", ago, datetime=exact, title=exact)


def number_text(value: int | None) -> str:
    """A number with commas; None = unknown."""
    return "unknown" if value is None else f"{value:,}"


def age_text(seconds: float | None) -> str:
    """A length of time in a few words; None = unknown."""
    return "unknown" if seconds is None else "0 s" if seconds < 1 else lasting(seconds)


def course_of(values: Sequence[float], *, label: str) -> Html:
    """The course of a value as a small line; nothing before there are two values."""
    if len(values) < 2:
        return Html()
    most, step = max(values) or 1.0, 80 / (len(values) - 1)
    points = " ".join(f"{number * step:.1f},{18 - 16 * value / most:.1f}" for number, value in enumerate(values))
    line = tag("polyline", points=points, cls="lf-line")
    said = f"{label}: at most {most:,.1f}, now {values[-1]:,.1f}"
    return tag("svg", line, viewBox="0 0 80 20", width="80", height="20", role="img", aria_label=said, cls="lf-spark")


@dataclass(frozen=True)
class Node:
    """A node of a graph: `tone` is '', `good`, `warn` or `bad`; the column gives its place from left to right."""

    id: str
    title: str
    detail: str = ""
    kind: str = ""
    column: int = 0
    href: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Edge:
    """An arrow between two nodes, with a label of a line or more; `is_back` draws it dashed, as what flows back."""

    source: str
    target: str
    label: str = ""
    tone: str = ""
    is_back: bool = False


_HEIGHT, _SPACE, _EDGE = 50, 18, 18


def drawn_graph(nodes: Sequence[Node], edges: Sequence[Edge], *, label: str, width: int = 176, gap: int = 96) -> Html:
    """A layered graph as SVG; its nodes are links, its colours come from the style sheet.

    Args:
        label: what it shows, for screen readers. width: of a node. gap: between two columns.
    """
    columns: dict[int, list[Node]] = {}
    for node in nodes:
        columns.setdefault(node.column, []).append(node)
    for number in sorted(columns)[1:]:
        columns[number] = _ordered(columns, number, edges)
    most = max((len(column) for column in columns.values()), default=1)
    tall = most * (_HEIGHT + _SPACE) - _SPACE + 2 * _EDGE
    places: dict[str, tuple[float, float]] = {}
    for index, number in enumerate(sorted(columns)):
        column = columns[number]
        used = len(column) * (_HEIGHT + _SPACE) - _SPACE
        for row, node in enumerate(column):
            places[node.id] = 2 + index * (width + gap), (tall - used) / 2 + row * (_HEIGHT + _SPACE)
    wide = len(columns) * (width + gap) - gap + 4
    drawn = [edge for edge in edges if edge.source in places and edge.target in places]
    lines = [_arrow(edge, places, width) for edge in drawn]
    # Arrows to one node that say the same have one label, where they meet.
    labels = [_label(edge, places[edge.target]) for edge in {(e.target, e.label): e for e in drawn if e.label}.values()]
    boxes = [_box(node, *places[node.id], width) for node in nodes]
    return tag(
        "svg", *lines, *boxes, *labels,
        viewBox=f"0 0 {wide:g} {tall:g}", width=f"{wide:g}", height=f"{tall:g}", role="group", aria_label=label,
        cls="lf-graph",
    )  # fmt: skip


def _ordered(columns: Mapping[int, list[Node]], number: int, edges: Sequence[Edge]) -> list[Node]:
    """A column sorted by the mean place of the nodes before it that point to each, so that few arrows cross."""
    before = {node.id: row for other, column in columns.items() if other < number for row, node in enumerate(column)}

    def mean(pair: tuple[int, Node]) -> tuple[float, int]:
        row, node = pair
        found = [before[edge.source] for edge in edges if edge.target == node.id and edge.source in before]
        return (sum(found) / len(found) if found else row), row

    return [node for _, node in sorted(enumerate(columns[number]), key=mean)]


def _arrow(edge: Edge, places: Mapping[str, tuple[float, float]], width: int) -> Html:
    (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
    middle = _HEIGHT / 2
    if x1 > x0:
        start, end, bend = (x0 + width, y0 + middle), (x1 - 3, y1 + middle), (x1 - x0 - width) / 2
    else:
        start, end, bend = (x0, y0 + middle + 12), (x1 + width + 3, y1 + middle + 12), (x1 + width - x0) / 2
    tone = f" lf-{edge.tone}" if edge.tone else ""
    bends = f"{start[0] + bend:g},{start[1]:g} {end[0] - bend:g},{end[1]:g}"
    curve = f"M{start[0]:g},{start[1]:g} C{bends} {end[0]:g},{end[1]:g}"
    head = f"M{end[0]:g},{end[1]:g} l{-6 if x1 > x0 else 6},-4 v8 z"
    return tag(
        "g", tag("path", d=curve, cls="lf-line"), tag("path", d=head, cls="lf-head"),
        cls=f"lf-edge{tone}{' lf-back' if edge.is_back else ''}",
    )  # fmt: skip


def _label(edge: Edge, target: tuple[float, float]) -> Html:
    """The label of an arrow, before the node that it points to."""
    lines = edge.label.split("\n")
    wide, high = 7 * max(map(len, lines)) + 10, 14 * len(lines) + 4
    x, y = target[0] - wide / 2 - 11, target[1] + (_HEIGHT - high) / 2
    return tag(
        "g",
        tag("rect", x=f"{x - wide / 2:g}", y=f"{y:g}", width=f"{wide:g}", height=f"{high:g}", rx="9"),
        *(
            tag("text", line, x=f"{x:g}", y=f"{y + 13 + 14 * number:g}", text_anchor="middle")
            for number, line in enumerate(lines)
        ),
        cls=f"lf-edge-label{f' lf-{edge.tone}' if edge.tone else ''}",
    )


def _box(node: Node, x: float, y: float, width: int) -> Html:
    room = int((width - 24) / 7.4)
    title = node.title if len(node.title) <= room else f"{node.title[: room - 1]}…"
    detail = node.detail if len(node.detail) <= room + 4 else f"{node.detail[: room + 3]}…"
    said = f"{node.kind} {node.title}, {node.detail}".strip(", ")
    shape = [
        tag("title", said),
        tag("rect", x=f"{x:g}", y=f"{y:g}", width=width, height=_HEIGHT, rx="8"),
        tag("text", title, x=f"{x + 12:g}", y=f"{y + 21:g}", cls="lf-node-title"),
        tag("text", detail, x=f"{x + 12:g}", y=f"{y + 38:g}", cls="lf-node-detail"),
    ]
    cls = f"lf-node{f' lf-{node.tone}' if node.tone else ''}"
    return tag("a", *shape, href=node.href, cls=cls, aria_label=said) if node.href else tag("g", *shape, cls=cls)
