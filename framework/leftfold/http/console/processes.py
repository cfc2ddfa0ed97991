"""Processes with their instances and timers, and the workers of all parts with what they publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from nicegui import ui

from leftfold.engine.processing.timer_admin import Action, Order, SetTimer
from leftfold.http.console.elements import (
    Act,
    act_button,
    button,
    fetched,
    form,
    heading,
    html,
    panel,
    show_surveys,
    submit,
)
from leftfold.http.console.html import Html, course_of, details, json_text, table, tag, time_text
from leftfold.http.console.overview import is_about
from leftfold.http.console.state import SurveyResult, Visitor
from leftfold.model.app import App
from leftfold.model.process import Process
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.operations.timers import TimerWork, log_time_now, row_of

__all__ = ["processes", "workers"]

Row = Mapping[str, Any]
_LISTED = 100
_WAIT = 30.0


async def processes(visitor: Visitor, name: str = "", key: str = "") -> None:
    """The page of processes: their instances, the timers ahead and overdue, and each instance's trace."""
    heading("Processes", "Sagas across services: what waits for them, their instances, and the timers that are set.")
    found = [(app, process) for app in visitor.console.apps.values() for process in app.processes]
    if not found:
        html(tag("p", "These Apps have no processes.", cls="lf-quiet"))
    with panel("Backlog"):
        listed = html(tag("span", "looking", cls="lf-waiting"))

    def shown(result: SurveyResult) -> None:
        listed.set_content(_backlog(visitor, result))

    show_surveys(visitor, shown)
    for app, process in found:
        if not name or name == process.name:
            await _Timers(visitor, app, process, key if name else "").show()


def _age(value: float | None) -> str:
    return "unknown" if value is None else "0 s" if value < 1 else lasting(value)


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _state(result: SurveyResult, kind: str, name: str) -> Html:
    wrong = any(is_about(problem, kind, name) for problem in result.problems)
    return tag("span", "needs attention" if wrong else "fine", cls=f"lf-badge lf-{'bad' if wrong else 'good'}")


def _backlog(visitor: Visitor, result: SurveyResult) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href("/processes", name=row["name"])),
            _state(result, "process", row["name"]),
            row.get("workers", 0),
            row.get("routers", 0),
            f"{row.get('inputs', 0):,}",
            _age(row.get("unrouted")),
            _age(row.get("untaken")),
            _count(row.get("timers")),
            _count(row.get("overdue")),
            tag("a", row.get("dead", 0), href=visitor.href("/dead", name=row["name"])),
        )
        for row in result.rows
        if row["kind"] == "process"
    ]
    columns = (
        "process",
        "state",
        "workers#",
        "routers#",
        "inputs#",
        "not routed#",
        "not taken#",
        "timers#",
        "overdue#",
    )
    return table((*columns, "dead#"), rows, label="Processes", empty="No process has run yet.")


class _Timers:
    """The instances and timers of one process."""

    def __init__(self, visitor: Visitor, app: App, process: Process[Any, Any, Any], key: str) -> None:
        self._visitor, self._app, self._process, self._key = visitor, app, process, key

    async def show(self) -> None:
        """Makes the elements."""
        with panel(f"Timers of {self._process.name}"):
            with form(self._search):
                self._typed = (
                    ui.input("Key of an instance", value=self._key).props("outlined dense").classes("lf-field")
                )
                submit("Show instance")
                if self._key:
                    button("All instances", lambda: self._open(""))
            self._section = ui.element("div").classes("lf-stack")
        await self._again()

    def _search(self) -> None:
        self._open((self._typed.value or "").strip())

    def _open(self, key: str) -> None:
        ui.navigate.to(self._visitor.route("/processes", name=self._process.name, key=key))

    async def _again(self) -> None:
        self._section.clear()
        with self._section:
            await fetched(self._read, self._shown, what=f"reading the states of {self._process.name}")

    def _read(self) -> tuple[list[tuple[SetTimer, Row]], list[str]]:
        with TimerWork(self._app, self._process, self._visitor.console.servers[0], self._key) as work:
            watermark = work.told_time()
            timers = [(timer, row_of(self._process.name, timer, watermark)) for timer in work.table.timers(self._key)]
            keys = sorted(work.table.keys) if not self._key else [key for key in work.table.keys if key == self._key]
        return sorted(timers, key=lambda pair: (pair[1]["due"], pair[0].key)), keys

    def _shown(self, found: tuple[list[tuple[SetTimer, Row]], list[str]]) -> None:
        timers, keys = found
        overdue = sum(1 for _, row in timers if row["overdue"])
        late = f", {overdue:,} overdue" if overdue else ""
        html(tag("p", f"{amount(len(keys), 'instance')}, {amount(len(timers), 'timer')}{late}.", cls="lf-quiet"))
        most = _LISTED // 4 if self._visitor.may_act else _LISTED
        for timer, row in timers[:most]:
            with ui.element("div").classes("lf-letter lf-row"):
                html(self._line(timer, row))
                if self._visitor.may_act:
                    with ui.element("div").classes("lf-buttons"):
                        for action in Action:
                            text, label = action.value.capitalize(), f"{action.value} {timer.name} of {timer.key}"
                            act = partial(self._order, action, timer)
                            act_button(self._visitor, text, act, self._again, label=label)
        if not timers:
            html(tag("p", "No timer is set.", cls="lf-empty"))
        elif len(timers) > most:
            html(tag("p", "Later timers are left out here; type the key of an instance.", cls="lf-quiet"))
        links = [self._instance(key) for key in keys[:_LISTED]]
        more = [f"and {len(keys) - _LISTED:,} more"] if len(keys) > _LISTED else []
        html(tag("details", tag("summary", "Instances"), tag("p", *links, *more, cls="lf-places")))

    def _instance(self, key: str) -> Html:
        return tag("a", key, href=self._visitor.href("/processes", name=self._process.name, key=key))

    def _line(self, timer: SetTimer, row: Row) -> Html:
        left = row["left"]
        remaining = (
            "unknown" if left is None else f"in {lasting(left)}" if left > 0 else f"overdue for {lasting(-left)}"
        )
        badge = tag("span", remaining, cls=f"lf-badge {'lf-bad' if row['overdue'] else ''}")
        trace = tag("a", "trace", href=self._visitor.href("/trace", id=row["correlation_id"]))
        title = [tag("strong", timer.name), " of ", self._instance(timer.key), " ", badge, " ", trace]
        return tag("p", *title) + details(f"{row['sends']}, due {row['due']}", row["command"])

    def _order(self, action: Action, timer: SetTimer) -> Act:
        name = self._process.name

        def line(reason: str) -> str:
            words = ("timers", action.value, name, timer.key, timer.name, "--reason", reason or "WHY")
            return self._visitor.console.shell(*words)

        def do(who: str, reason: str, report: Any) -> str:
            with TimerWork(self._app, self._process, self._visitor.console.servers[0], timer.key) as work:
                work.check_set(timer)
                order = Order(action, who, reason, log_time_now(work.told_time()))
                done = work.give(timer, order, _WAIT)
            later = f"not taken within {_WAIT:g} s; it stays in the log until a worker runs: leftfold run {name}"
            return f"{action.value} {timer.name} of {timer.key}: {'taken' if done.taken else later}"

        sends = f"{timer.due.type} {json_text(timer.due.value)}"
        happens = f"It sends {sends} now." if action is Action.FIRE else f"It will never send {sends}."
        title = f"{action.value.capitalize()} timer {timer.name} of {name} {timer.key}"
        return Act(title, f"{happens} A worker takes the order like any input.", line, do, needs_reason=True)


def workers(visitor: Visitor) -> None:
    """The page of workers: how many each part has, its partitions, and what it publishes."""
    heading("Workers", "What is at work for each part, and how fast its log grows while this console is open.")
    parts = {}
    for title in _PARTS:
        with panel(title):
            parts[title] = html(tag("span", "looking", cls="lf-waiting"))

    def shown(result: SurveyResult) -> None:
        history = visitor.console.survey.history
        for title, make in _PARTS.items():
            parts[title].set_content(make(visitor, result, history))

    show_surveys(visitor, shown)


def _deciders(visitor: Visitor, result: SurveyResult, history: Sequence[SurveyResult]) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href("/streams", category=row["name"])),
            _state(result, "decider", row["name"]),
            row["version"],
            row["partitions"],
            row["workers"],
            f"{row['offsets']:,}",
            _course(history, "decider", row["name"], "offsets", is_rate=True),
            f"{row['per_command']:,} B",
            f"{row['answers_dropped']:,}",
            tag("a", row["dead"], href=visitor.href("/dead", name=row["name"])),
        )
        for row in result.rows
        if row["kind"] == "decider"
    ]
    columns = ("decider", "state", "version#", "partitions#", "workers#", "offsets#", "growth", "state/command#")
    return table((*columns, "answers dropped#", "dead#"), rows, label="Deciders", empty="These Apps decide nothing.")


def _reactions(visitor: Visitor, result: SurveyResult, history: Sequence[SurveyResult]) -> Html:
    rows = [
        (
            row["name"],
            _state(result, row["kind"], row["name"]),
            row["kind"],
            row["events"],
            row["running"],
            _count(row.get("lag")),
            _course(history, row["kind"], row["name"], "lag"),
            tag("a", row["parked"], href=visitor.href("/dead")) if "parked" in row else "",
        )
        for row in result.rows
        if row["kind"] in ("reaction", "stream")
    ]
    columns = ("name", "state", "kind", "reads", "processes#", "lag#", "course of lag", "parked#")
    return table(columns, rows, label="Reactions and streams", empty="These Apps have neither.")


def _views(visitor: Visitor, result: SurveyResult, history: Sequence[SurveyResult]) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href(f"/views/{row['name']}")),
            _state(result, "view", row["name"]),
            row.get("tails", ""),
            _count(row.get("lag")),
            _age(row.get("behind")),
            _course(history, "view", row["name"], "lag"),
            time_text(row.get("time")),
        )
        for row in result.rows
        if row["kind"] == "view" and row.get("live")
    ]
    columns = ("view", "state", "projectors#", "lag#", "behind#", "course of lag", "last event")
    return table(columns, rows, label="Projectors", empty="No view is live.")


_PARTS = {"Deciders": _deciders, "Projectors of views": _views, "Reactions and streams": _reactions}


def _course(history: Sequence[SurveyResult], kind: str, name: str, field: str, *, is_rate: bool = False) -> Html:
    """The last values of a field as a line; of a counter how many came each second."""
    found = [
        (result.time, row[field])
        for result in history
        for row in result.rows
        if row["kind"] == kind and row["name"] == name and row.get("live", True) and row.get(field) is not None
    ]
    if not is_rate:
        return course_of([float(value) for _, value in found], label=f"Course of {field} of {name}")
    rates = [max(0.0, (b - a) / (u - t)) for (t, a), (u, b) in pairwise(found) if u > t]
    text = f"{rates[-1]:,.1f}/s " if rates else ""
    return tag("span", text, course_of(rates, label=f"Growth of {name}"))
