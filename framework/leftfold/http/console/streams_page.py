"""Streams: the events of a key with the state before and after each, time travel, and causes and effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nicegui import ui

from leftfold.engine.causation import Trace, TraceNode
from leftfold.engine.progress import RebuildProgress
from leftfold.http.console.console_state import Visitor
from leftfold.http.console.elements import button, fetched, form, heading, html, panel, show_error, submit, with_name
from leftfold.http.console.html import (
    Edge,
    Html,
    Node,
    difference,
    drawn_graph,
    json_text,
    pairs,
    sentence,
    table,
    tag,
    time_text,
)
from leftfold.http.stream_routes import StreamHistory
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount
from leftfold.runtime.operations.logged_events import EventLog, fields_of
from leftfold.runtime.operations.traces import traced
from leftfold.runtime.project import Usage, archive_of, unknown

__all__ = ["streams", "trace", "trace_graph"]

_RECENT = 25
_DRAWN = 150
_LISTED_STEPS = 2_000
"""Most records of a trace that are listed: each is written while every other page waits."""
_LISTED = 400
_MARKED = 40
_KEPT = 10_000
"""The most events of a stream on a page."""
_DIGITS = 16


async def streams(visitor: Visitor, category: str = "", key: str = "", version: str = "") -> None:
    """The page that searches streams, and shows one."""
    deciders = visitor.console.deciders()
    if not deciders:
        heading("Streams")
        show_error(Usage("these Apps have no deciders, and so no streams of their own; open the App that owns them"))
        return
    chosen = category or next(iter(deciders))
    heading(f"{chosen} {key}".strip() if key else "Streams", "The events of a key, and the state that they fold to.")

    def show() -> None:
        ui.navigate.to(visitor.route("/streams", category=select.value, key=(typed.value or "").strip()))

    with panel(), form(show):
        select = ui.select(sorted({*deciders, chosen}), value=chosen, label="Category")
        select.props("outlined dense").classes("lf-field")
        typed = ui.input("Key", value=key).props("outlined dense autofocus").classes("lf-field")
        submit("Show stream")
    select.on_value_change(show)
    if chosen not in deciders:
        show_error(unknown("category called", chosen, deciders))
        return
    if not key:
        await _show_recent(visitor, chosen)
        return
    app, decider = deciders[chosen]
    connection = visitor.console.connections[app.name]

    wanted = int(version) if version.isascii() and version.isdigit() and len(version) < _DIGITS else None

    def read() -> StreamHistory:
        history = StreamHistory(decider, connection.stream(chosen, key), wanted, _KEPT)
        if not history.last:
            raise Usage(
                f"category {chosen} has no stream {key!r}; leave the key out for the latest ones, or type: "
                f"leftfold events {chosen}"
            )
        return history

    def shown(history: StreamHistory) -> None:
        version = history.last if wanted is None else min(max(history.first, wanted), history.last)
        _Travel(visitor, chosen, key, history).show(version)

    await fetched(read, shown, what=f"reading the partition of {key}")


async def _show_recent(visitor: Visitor, category: str) -> None:
    """The last events of a category, with links to their streams."""
    if not visitor.console.has_servers:
        html(tag("p", "Type the key of a stream.", cls="lf-quiet"))
        return
    kafka, _, archive = visitor.console.servers
    warnings: list[str] = []

    def read() -> list[Mapping[str, Any]]:
        with EventLog(kafka_settings(kafka), category, archive=archive_of(archive), warn=warnings.append) as log:
            return [fields_of(record) for records in log.read(_RECENT, follow=False) for record in records]

    def shown(found: list[Mapping[str, Any]]) -> None:
        rows = [
            (
                tag("a", event["key"], href=_stream(visitor, category, event["key"], event["version"])),
                tag("strong", _brief(event["type"])),
                event["version"],
                time_text(event["time"]),
                f"{event['partition']}:{event['offset']}",
            )
            for event in reversed(found)
        ]
        with panel(f"The last events of {category}"):
            _show_warnings(warnings)
            columns = ("key", "event", "version#", "when", "partition:offset#")
            html(table(columns, rows, label=f"Last events of {category}"))

    await fetched(read, shown, what=f"reading the end of {category}")


def _show_warnings(warnings: Sequence[str]) -> None:
    """Shows what could not be read of what follows, which passes for the whole without it."""
    for text in dict.fromkeys(warnings):
        html(sentence(text), cls="lf-error").props('role="alert"')


def _stream(visitor: Visitor, category: str, key: str, version: int | None = None) -> str:
    return visitor.href("/streams", category=category, key=key, version=version)


class _Travel:
    """A stream as a timeline, in which one version is chosen."""

    def __init__(self, visitor: Visitor, category: str, key: str, history: StreamHistory) -> None:
        self._visitor, self._category, self._key, self._history = visitor, category, key, history
        self._version = 0

    def show(self, version: int) -> None:
        """Makes the elements, and shows a version."""
        first, last, count = self._history.first, self._history.last, self._history.last - self._history.first + 1
        with panel("Time travel"):
            self._title = html()
            if count > 1:
                self._slider = ui.slider(min=first, max=last, step=1, value=version)
                self._slider.props(f"snap label {'markers' if count <= _MARKED else ''}")
                with_name(self._slider, f"Version of {self._key}, {first} to {last}")
                self._slider.on_value_change(lambda event: self._go(int(event.value or first)))
            if first > 1 or self._history.has_later:
                html(tag("p", *self._elsewhere(first, last), cls="lf-quiet"))
        with ui.element("div").classes("lf-columns"):
            with panel(amount(count, "event")):
                self._list = html()
                self._list.on("click", lambda event: self._clicked(event.args), js_handler=_CLICK)
            with panel("What it changed"):
                self._difference = html()
                self._alike = html()
            with panel("The event"):
                self._event = html()
        with ui.element("div").classes("lf-columns"):
            with panel("State before"):
                self._before = html()
            with panel("State after"):
                self._after = html()
        self._causes = panel()
        self._go(version, is_first=True)

    def _elsewhere(self, first: int, last: int) -> Iterator[Html | str]:
        """What this page does not hold of a long stream, with links."""
        yield f"This page holds versions {first:,} to {last:,}."
        earlier, later = (" Earlier ones", first - 1, first > 1), (" Later ones", last + 1, self._history.has_later)
        for name, version, exists in (earlier, later):
            if exists:
                yield tag("a", name, href=_stream(self._visitor, self._category, self._key, version))

    def _clicked(self, version: object) -> None:
        first, last = self._history.first, self._history.last
        if isinstance(version, str) and version.isascii() and version.isdigit() and last > first:
            self._slider.set_value(min(max(first, int(version)), last))

    def _go(self, version: int, *, is_first: bool = False) -> None:
        if version == self._version:
            return
        self._version, history = version, self._history
        recorded = history.recorded(version)
        figures = {
            "version": f"{version} of {history.last}{' and later ones' if history.has_later else ''}",
            "event": _brief(history.type_of(version)),
            "when": time_text(recorded.time),
            "in its decision": f"{recorded.decision[0]} of {recorded.decision[1]}",
        }
        self._title.set_content(_figures(figures))
        self._list.set_content(_timeline(self._visitor, self._category, self._key, history, version))
        before, after = history.state(version - 1), history.state(version)
        self._difference.set_content(difference(before, after, label=f"State before and after version {version}"))
        self._before.set_content(tag("pre", json_text(before), tabindex="0"))
        self._after.set_content(tag("pre", json_text(after), tabindex="0"))
        ids = {"id": recorded.id, "correlation": recorded.correlation_id, "causation": recorded.causation_id}
        where = {**ids, "behind it": str(recorded.position)}
        body = tag("pre", json_text(history.payload(version)), tabindex="0")
        self._event.set_content(body + pairs({name: tag("code", value) for name, value in where.items()}))
        self._alike.set_content(_against_last(history, version))
        self._causes.clear()
        with self._causes:
            html(tag("h2", "Causes and effects"))
            if self._visitor.console.has_servers:
                button("Trace this event through all services", lambda: self._trace(recorded.id))
            else:
                html(tag("p", "A trace needs servers.", cls="lf-quiet"))
        if not is_first:
            ui.navigate.history.replace(_stream(self._visitor, self._category, self._key, version))

    async def _trace(self, id_: str) -> None:
        self._causes.clear()
        with self._causes:
            html(tag("h2", "Causes and effects"))
            await _show_trace(self._visitor, id_)


_CLICK = """(event) => {
  const entry = event.target.closest("[data-version]");
  if (!entry || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  event.stopPropagation();
  emit(entry.dataset.version);
}"""
"""Chooses a version without a new page; with Ctrl the link opens in a tab of its own."""


def _figures(figures: Mapping[str, object]) -> Html:
    items = [tag("div", tag("dt", name), tag("dd", value)) for name, value in figures.items()]
    return tag("dl", *items, cls="lf-figures")


def _timeline(visitor: Visitor, category: str, key: str, history: StreamHistory, chosen: int) -> Html:
    """The events as links, the newest first; of long streams those around the chosen version."""
    count = history.last - history.first + 1
    first = max(history.first, min(chosen - _LISTED // 2, history.last - _LISTED + 1))
    items = []
    for version in range(min(history.last, first + _LISTED - 1), first - 1, -1):
        link = tag(
            "a",
            tag("span", f"v{version}", cls="lf-version"),
            tag("strong", _brief(history.type_of(version))),
            time_text(history.recorded(version).time),
            href=_stream(visitor, category, key, version),
            data_version=version,
            aria_current="true" if version == chosen else None,
        )
        items.append(tag("li", link))
    found = tag("ol", *items, cls="lf-timeline", reversed="reversed")
    if count == len(items):
        return found
    return found + tag("p", f"{amount(count - len(items), 'other event')}: use the slider", cls="lf-quiet")


def _against_last(history: StreamHistory, version: int) -> Html:
    """The payload beside that of the last event of the same type."""
    other = history.before_alike(version)
    if other is None:
        where = "in this stream" if history.first == 1 else "on this page"
        return tag("p", f"The first event of its type {where}.", cls="lf-quiet")
    names = f"v{other}", f"v{version}"
    label = f"The event against the last {_brief(history.type_of(version))}"
    return tag("h3", label) + difference(history.payload(other), history.payload(version), label=label, names=names)


def _brief(type_: str) -> str:
    """The name of a wire type without its category and its first version."""
    return type_.partition(".")[2].removesuffix(".v1") or type_ or "?"


async def trace(visitor: Visitor, id: str = "") -> None:
    """The page that shows what caused a record and what it caused, across services."""
    heading("Trace", "What caused a command or an event, and what it caused, across all services of the cluster.")

    def show() -> None:
        ui.navigate.to(visitor.route("/trace", id=(typed.value or "").strip()))

    with panel(), form(show):
        typed = ui.input("Id of a command, an event, an input, or a correlation id", value=id)
        typed.props("outlined dense autofocus").classes("lf-field lf-long")
        submit("Trace")
    if id:
        with panel("Causes and effects"):
            await _show_trace(visitor, id)


async def _show_trace(visitor: Visitor, id_: str) -> None:
    reports, warnings = list[RebuildProgress](), list[str]()

    def read() -> Trace:
        kafka, _, archive = visitor.console.servers
        return Trace(traced(id_, None, kafka, archive_of(archive), report=reports.append, warn=warnings.append))

    def shown(found: Trace) -> None:
        _show_warnings(warnings)
        html(trace_graph(visitor, found, id_), cls="lf-wide lf-scroll")
        html(_tree(visitor, found, id_))

    await fetched(read, shown, what="reading the headers of all topics", reports=reports)


def trace_graph(visitor: Visitor, found: Trace, wanted: str) -> Html:
    """The causation trees as a graph, causes to the left of their effects; only the first ones of a long trace."""
    nodes, edges, ids = list[Node](), list[Edge](), dict[int, str]()
    for number, (node, depth) in enumerate(found.walk()):
        if number >= _DRAWN:
            break
        ids[id(node)] = name = f"n{number}"
        title, detail, tone = _said(node)
        tone = tone or ("chosen" if node.id == wanted else "")
        nodes.append(Node(name, title, detail, "", depth, _href(visitor, node), tone))
        if node.parent is not None and id(node.parent) in ids:
            edges.append(Edge(ids[id(node.parent)], name, _after(node), "bad" if tone == "bad" else ""))
    return drawn_graph(nodes, edges, label="Causes and their effects", gap=86)


def _said(node: TraceNode) -> tuple[str, str, str]:
    """The title, detail and tone of a record."""
    step = node.step
    if step is None:
        return "not in the log", node.id, "warn"
    title = _brief(step.type) if step.kind in ("command", "event", "input", "other") else step.kind
    owner = step.at.topic.rpartition(".")[0]
    detail = f"{step.kind} of {owner}, {step.key}" if step.kind in ("command", "event") else f"{owner}, {step.key}"
    if step.kind == "rejected":
        details = step.details
        return "rejected", f"{details.get('error', '?')}: {details.get('message', '?')}", "bad"
    return (title, f"dead letter: {next(iter(node.dead.values()))}", "bad") if node.dead else (title, detail, "")


def _after(node: TraceNode) -> str:
    after = node.after
    if after is None:
        return ""
    return f"{after * 1000:+.0f} ms" if abs(after) < 1 else f"{after:+.1f} s"


def _href(visitor: Visitor, node: TraceNode) -> str:
    step = node.step
    if step is None:
        return ""
    category = step.at.topic.rpartition(".")[0]
    if category in visitor.console.deciders():
        return _stream(visitor, category, step.key)
    return visitor.href("/trace", id=step.id)


def _tree(visitor: Visitor, found: Trace, wanted: str) -> Html:
    """The same as a list, for phones and screen readers, with places and reasons in full."""
    listed = 0

    def lines(nodes: Sequence[TraceNode], depth: int) -> Html:
        nonlocal listed
        if depth > _DRAWN:
            return tag("p", "deeper than can be shown here", cls="lf-quiet")
        items = list[Html]()
        for node in nodes:
            listed += 1
            if listed > _LISTED_STEPS:
                break
            inner = lines(node.children, depth + 1) if node.children else Html()
            items.append(tag("li", _line(visitor, node, wanted), inner))
        return tag("ul", *items, cls=f"lf-tree{'' if depth else ' lf-root'}")

    shown = lines(found.roots, 0)
    if listed <= _LISTED_STEPS:
        return shown
    line = visitor.console.shell("log", "trace", "--", wanted)
    return shown + tag(
        "p", sentence(f"These are the first {_LISTED_STEPS:,} of many; all of them: {line}"), cls="lf-quiet"
    )


def _line(visitor: Visitor, node: TraceNode, wanted: str) -> Html:
    title, detail, tone = _said(node)
    step, parts = node.step, list[object]()
    parts.append(tag("a", title, href=_href(visitor, node)) if step is not None else tag("em", title))
    parts += [" ", tag("span", detail, cls=f"lf-badge lf-{tone}" if tone == "bad" else "lf-quiet")]
    if step is not None:
        parts += [" ", tag("code", str(step.at)), " ", _after(node) or time_text(step.appended)]
    if node.again:
        parts += [" ", tag("span", f"again, without effect, {amount(len(node.again), 'time')}", cls="lf-quiet")]
    return tag("span", *parts, cls="lf-chosen-line" if node.id == wanted else None)
