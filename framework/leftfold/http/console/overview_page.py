"""The overview: a live graph of the Apps with rates and lags, and every problem with the command that solves it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from leftfold.http.console.console_state import SurveyResult, Visitor
from leftfold.http.console.elements import heading, html, panel, show_surveys
from leftfold.http.console.html import Edge, Html, Node, drawn_graph, joined, sentence, table, tag, time_text
from leftfold.model.app import App
from leftfold.runtime.console import amount, lasting

__all__ = ["empty_text", "graph_of", "is_about", "overview", "server_problems", "state_of"]

Row = Mapping[str, Any]
_PAGES = {"decider": "/workers", "process": "/processes", "reaction": "/dead", "stream": "/workers"}
"""Where each kind of member is looked at; views have pages of their own."""
_DETAILS: Mapping[str, Callable[[Row], str]] = {
    "process": lambda row: "unknown timers" if row.get("timers") is None else amount(row["timers"], "timer"),
    "reaction": lambda row: f"{row['parked']:,} parked" if "parked" in row else "unknown",
    "stream": lambda row: amount(row["running"], "process") if "running" in row else "unknown",
}
"""What the graph says of a member besides its kind."""


def _parts(app: App) -> dict[str, Sequence[Any]]:
    """The members of an App by their kind."""
    return {
        "view": app.views,
        "decider": app.deciders,
        "process": app.processes,
        "reaction": app.reactions,
        "stream": app.streams,
    }


def overview(visitor: Visitor) -> None:
    """The page of the overview; it stays up to date while it is open."""
    apps = ", ".join(app.name for app in visitor.console.apps.values())
    heading("Overview", f"What {apps} is made of, how far each part is behind, and what needs an operator.")
    with panel("Needs attention"):
        problems = html(tag("span", "looking", cls="lf-waiting")).props('role="status"')
    with panel("Flow of events"):
        wide, narrow = html(cls="lf-wide lf-scroll"), html(cls="lf-narrow")
        html(
            tag(
                "p",
                "On an arrow: how many offsets, or how long, the reader is behind; above that, with --metrics, records "
                "per second since the survey before. Dashed: commands of processes.",
                cls="lf-quiet",
            )
        )
    with panel("Servers"):
        servers = html()

    def show(result: SurveyResult) -> None:
        problems.set_content(_problems(visitor, result))
        wide.set_content(graph_of(visitor, result))
        narrow.set_content(graph_of(visitor, result, narrow=True))
        servers.set_content(_servers(result.rows))

    show_surveys(visitor, show)


def _problems(visitor: Visitor, result: SurveyResult) -> Html:
    items = [tag("li", sentence(problem), *_look(visitor, problem)) for problem in dict.fromkeys(result.problems)]
    nothing = tag("p", "Nothing. Looked at ", time_text(result.time * 1000), ".", cls="lf-fine")
    problems = tag("ul", *items, cls="lf-problems") if items else nothing
    remarks = dict.fromkeys(result.remarks)
    return joined([problems, *(tag("p", sentence(one), *_look(visitor, one), cls="lf-quiet") for one in remarks)])


def _look(visitor: Visitor, problem: str) -> Iterator[Html]:
    """A link to the page where a problem can be looked at and solved."""
    for app in visitor.console.apps.values():
        for kind, members in _parts(app).items():
            for member in members:
                if is_about(problem, kind, member.name):
                    is_dead = "dead letter" in problem or "dead list" in problem
                    path = f"/views/{member.name}" if kind == "view" else "/dead" if is_dead else _PAGES[kind]
                    about = {"name": member.name} if path == "/dead" else {}
                    yield Html(" ") + tag("a", f"open {member.name}", href=visitor.href(path, **about))
                    return


def _servers(rows: Sequence[Row]) -> Html:
    found = [
        (row["name"], tag("code", row.get("address", "")), row.get("topology", ""), _state(str(row.get("state", ""))))
        for row in rows
        if row["kind"] == "server"
    ]
    return table(("server", "address", "topology", "state"), found, label="Servers", empty="no servers are configured")


def _state(state: str) -> Html:
    return tag("span", state, cls=f"lf-badge {'lf-bad' if state == 'down' else 'lf-good' if state == 'up' else ''}")


def is_about(problem: str, kind: str, name: str) -> bool:
    """Whether a problem of the survey is about a decider, process, reaction, stream or view of this name."""
    patterns = [rf"\b(?:{kind}|leftfold (?:run|rebuild|retry)) {re.escape(name)}(?![\w-])"]
    if kind == "decider":
        patterns.append(rf"(?<![\w-]){re.escape(name)}\.(?:commands|events|dead)\b")
    return any(re.search(pattern, problem) for pattern in patterns)


def state_of(result: SurveyResult, kind: str, name: str) -> Html:
    """Whether a member needs attention, as a badge."""
    if _tone(result, kind, name):
        return tag("span", "needs attention", cls="lf-badge lf-bad")
    if not _row(result.rows, kind, name):
        return tag("span", "unknown", cls="lf-badge")
    return tag("span", "fine", cls="lf-badge lf-good")


def server_problems(visitor: Visitor, result: SurveyResult) -> Html:
    """The problems that are about no member, such as servers that do not answer."""
    parts = [part for app in visitor.console.apps.values() for part in _parts(app).items()]
    members = [(kind, one.name) for kind, found in parts for one in found]
    others = [p for p in dict.fromkeys(result.problems) if not any(is_about(p, *member) for member in members)]
    return tag("ul", *(tag("li", sentence(one)) for one in others), cls="lf-problems") if others else Html()


def empty_text(result: SurveyResult, text: str) -> str:
    """What a table without rows says: that nothing is known, while a server does not answer."""
    return "Unknown: a server does not answer." if result.is_missing else text


def graph_of(visitor: Visitor, result: SurveyResult, *, narrow: bool = False) -> Html:
    """The graph of all Apps of a console; `narrow` draws two columns, for phones."""
    nodes, edges = list[Node](), list[Edge]()
    for app in visitor.console.apps.values():
        nodes += _nodes(visitor, app, result, narrow=narrow)
        edges += _edges(app, result, narrow=narrow)
    known = {node.id for node in nodes}
    for edge in edges:  # categories of other Apps have no decider here
        if edge.source not in known:
            known.add(edge.source)
            nodes.append(
                Node(
                    edge.source, edge.source.partition(" ")[2], "events of another App", "category", 0 if narrow else 1
                )
            )
    label = "Deciders, categories, processes, reactions, streams and views"
    merged = {(edge.source, edge.target): edge for edge in edges}
    if narrow:
        return drawn_graph(nodes, list(merged.values()), label=label, width=136, gap=76)
    return drawn_graph(nodes, list(merged.values()), label=label, width=196, gap=120)


def _row(rows: Sequence[Row], kind: str, name: str) -> Row:
    """The row of a part; of a view, that of its live generation."""
    found = [row for row in rows if row["kind"] == kind and row["name"] == name]
    return next((row for row in found if row.get("live", True)), found[0] if found else {})


def _tone(result: SurveyResult, kind: str, name: str) -> str:
    return "bad" if any(is_about(problem, kind, name) for problem in result.problems) else ""


def _nodes(visitor: Visitor, app: App, result: SurveyResult, *, narrow: bool) -> Iterator[Node]:
    rows, last = result.rows, 1 if narrow else 2
    for decider in app.deciders:
        row, name = _row(rows, "decider", decider.name), decider.name
        workers = amount(row["workers"], "worker") if "workers" in row else "unknown"
        tone = _tone(result, "decider", decider.name)
        dead = f", {row['dead']} dead" if row.get("dead") else ""
        events = f"{row['offsets']:,} offsets" if "offsets" in row else "unknown"
        href = visitor.href("/streams", category=name)
        if narrow:
            yield Node(f"category {name}", name, f"{workers}{dead}", "decider", 0, href, tone)
        else:
            yield Node(f"decider {name}", name, f"decider, {workers}{dead}", "", 0, visitor.href("/workers"), tone)
            yield Node(f"category {name}", f"{name}.events", events, "", 1, href)
    for kind, members in _parts(app).items():
        for name in (one.name for one in members if kind in _DETAILS):
            detail = f"{kind}, {_DETAILS[kind](_row(rows, kind, name))}"
            yield Node(f"{kind} {name}", name, detail, "", last, visitor.href(_PAGES[kind]), _tone(result, kind, name))
    for view in app.views:
        row, name = _row(rows, "view", view.name), view.name
        nothing = "view, unknown" if result.is_missing else "view, not built"
        detail = f"view, {row['rows']:,} rows" if "rows" in row else nothing
        column = last + (app.keeper(view) is not None)
        yield Node(
            f"view {name}", name, detail, "", column, visitor.href(f"/views/{name}"), _tone(result, "view", name)
        )


def _edges(app: App, result: SurveyResult, *, narrow: bool) -> Iterator[Edge]:
    rows = result.rows
    if not narrow:
        for decider in app.deciders:
            yield Edge(f"decider {decider.name}", f"category {decider.name}", _rate(result, "decider", decider.name))
    for process in app.processes:
        row, target, tone = (
            _row(rows, "process", process.name),
            f"process {process.name}",
            _tone(result, "process", process.name),
        )
        for category in process.categories:
            label = _lines(_rate(result, "router", process.name, process), _seconds(row.get("unrouted")))
            yield Edge(f"category {category}", target, label, tone)
        for category in sorted({command.__leftfold__.category for command in process.sends}):
            yield Edge(target, f"{'category' if narrow else 'decider'} {category}", "", "", is_back=True)
    for reaction in app.reactions:
        row, tone = _row(rows, "reaction", reaction.name), _tone(result, "reaction", reaction.name)
        for category in reaction.categories:
            label = _lines(_rate(result, "reaction", reaction.name, reaction), _offsets(row.get("lag")))
            yield Edge(f"category {category}", f"reaction {reaction.name}", label, tone)
    for stream in app.streams:
        row, tone = _row(rows, "stream", stream.name), _tone(result, "stream", stream.name)
        for category in stream.categories:
            label = _lines(_rate(result, "stream", stream.name, stream), _offsets(row.get("lag"), row.get("behind")))
            yield Edge(f"category {category}", f"stream {stream.name}", label, tone)
    for view in app.views:
        row, tone = _row(rows, "view", view.name), _tone(result, "view", view.name)
        keeper = app.keeper(view)
        for category in view.categories if keeper is None else ():
            label = _lines(_rate(result, "view", view.name, view), _offsets(row.get("lag"), row.get("behind")))
            yield Edge(f"category {category}", f"view {view.name}", label, tone)
        if keeper is not None:
            yield Edge(f"stream {keeper.name}", f"view {view.name}", "", tone)


def _rate(result: SurveyResult, kind: str, name: str, reader: Any = None) -> str:
    """Records per second as the label of an arrow; '' = unknown, also of a reader of several categories.

    The router of a process reads its events.
    """
    rate = _row(result.rates, kind, name).get("rate")
    if rate is None or (reader is not None and len(reader.categories) > 1):
        return ""
    return f"{rate:,.{0 if rate >= 10 or not rate else 1}f}/s"


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _offsets(lag: int | None, behind: float | None = None) -> str:
    """A lag as the label of an arrow: offsets, and how long it is behind when that is a second or more."""
    if lag is None:
        return "?"
    return f"{lag:,}, {lasting(behind)}" if behind is not None and behind >= 1 else f"{lag:,}"


def _seconds(age: float | None) -> str:
    return "?" if age is None else "0" if age < 1 else lasting(age)
