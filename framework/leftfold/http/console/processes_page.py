"""Processes with their instances and timers, and the workers of all parts with what they publish."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from nicegui import ui

from leftfold.engine.processing.timer_admin import Action, Order, SetTimer
from leftfold.http.console.console_state import SurveyResult, Visitor
from leftfold.http.console.elements import (
    Act,
    act_button,
    button,
    fetched,
    form,
    heading,
    html,
    panel,
    submit,
    survey_html,
)
from leftfold.http.console.html import (
    Html,
    age_text,
    command,
    course_of,
    details,
    json_text,
    number_text,
    table,
    tag,
    time_text,
)
from leftfold.http.console.overview_page import empty_text, server_problems, state_of
from leftfold.model.app import App
from leftfold.model.process import Process
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.operations.components import FAR, MOST_STATES
from leftfold.runtime.operations.timers import TimerWork, keys_by_state, log_time_now, row_of

__all__ = ["processes", "workers"]

Row = Mapping[str, Any]
_LISTED, _OF_STATE = 100, 25
_WAIT = 30.0


async def processes(visitor: Visitor, name: str = "", key: str = "") -> None:
    """The page of processes: their instances, the timers ahead and overdue, and each instance's trace."""
    heading("Processes", "Sagas across services: what waits for them, their instances, and the timers that are set.")
    found = [(app, process) for app in visitor.console.apps.values() for process in app.processes]
    if not found:
        html(tag("p", "These Apps have no processes.", cls="lf-quiet"))
    with panel("Backlog"):
        survey_html(visitor, partial(_backlog, visitor))
    for app, process in found:
        if not name or name == process.name:
            await _Timers(visitor, app, process, key if name else "").show()


def _backlog(visitor: Visitor, result: SurveyResult) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href("/processes", name=row["name"])),
            state_of(result, "process", row["name"]),
            row.get("workers", 0),
            row.get("routers", 0),
            f"{row.get('inputs', 0):,}",
            age_text(row.get("unrouted")),
            age_text(row.get("untaken")),
            number_text(row.get("timers")),
            number_text(row.get("overdue")),
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
    nothing = empty_text(result, "No process has run yet.")
    return server_problems(visitor, result) + table((*columns, "dead#"), rows, label="Processes", empty=nothing)


def _by(visitor: Visitor) -> list[str]:
    """The option that names who acts, as the page does."""
    return ["--by", visitor.name] if visitor.name else []


class _Found(NamedTuple):
    """Timers with their rows, keys of instances by state, ids to trace by key, and the instance that was asked for."""

    timers: Sequence[tuple[SetTimer, Row]]
    states: Mapping[str, Sequence[str]]
    ids: Mapping[str, str]
    instance: Mapping[str, Any] | None


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

    def _read(self) -> _Found:
        kafka, _, _ = self._visitor.console.servers
        with TimerWork(self._app, self._process, kafka, self._key, MOST_STATES) as work:
            watermark = work.reported_time()
            timers = [(timer, row_of(self._process.name, timer, watermark)) for timer in work.table.timers(self._key)]
            # As in `status`: by the newest watermarks some timers are always due that their worker has not read yet.
            earlier = work.reported_time(before=time.time() - FAR)
            rows = [row_of(self._process.name, timer, earlier) for timer, _ in timers]
            states = keys_by_state(work.table, rows, earlier)
            if self._key:
                states = {state: [key for key in keys if key == self._key] for state, keys in states.items()}
            ids = work.table.waiting | {timer.key: timer.due.correlation for timer, _ in timers}
            if self._key and self._key not in ids:
                ids[self._key] = work.input_id()
            instance = work.instance()
        return _Found(sorted(timers, key=lambda pair: (pair[1]["due"], pair[0].key)), states, ids, instance)

    def _shown(self, found: _Found) -> None:
        timers = found.timers
        overdue = sum(1 for _, row in timers if row["overdue"])
        late = f", {overdue:,} overdue" if overdue else ""
        counted = amount(sum(map(len, found.states.values())), "instance")
        html(tag("p", f"{counted}, {amount(len(timers), 'timer')}{late}.", cls="lf-quiet"))
        html(self._states(found))
        if found.instance is not None:
            html(tag("h3", f"State of {self._key}") + tag("pre", json_text(found.instance), tabindex="0"))
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

    def _states(self, found: _Found) -> Html:
        """The instances by state, the stuck ones first, each with a link to its trace where its record names an id."""
        rows = []
        for state, keys in found.states.items():
            links = [self._traced(key, found.ids.get(key, "")) for key in keys[:_OF_STATE]]
            more = [f"and {len(keys) - _OF_STATE:,} more"] if len(keys) > _OF_STATE else []
            badge = tag("span", state, cls=f"lf-badge {'lf-bad' if state.startswith('stuck') else ''}")
            if keys:
                rows.append((badge, f"{len(keys):,}", tag("div", *links, *more, cls="lf-places")))
        label = f"Instances of {self._process.name}"
        return table(("state", "instances#", "keys"), rows, label=label, empty="There is no instance.")

    def _traced(self, key: str, id_: str) -> Html:
        if not id_:
            return self._instance(key)
        trace = tag("a", "trace", href=self._visitor.href("/trace", id=id_), aria_label=f"trace {key}")
        return tag("span", self._instance(key), " ", trace)

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
            words = ("timers", action.value, "--reason", reason or "WHY", *_by(self._visitor))
            return self._visitor.console.shell(*words, "--", name, timer.key, timer.name, app=self._app.name)

        def do(who: str, reason: str, report: Any) -> str:
            with TimerWork(self._app, self._process, self._visitor.console.servers[0], timer.key) as work:
                work.check_set(timer)
                order = Order(action, who, reason, log_time_now(work.reported_time()))
                done = work.give(timer, order, _WAIT)
            later = f"not taken within {_WAIT:g} s; it stays in the log until a worker runs: leftfold run {name}"
            return f"{action.value} {timer.name} of {timer.key}: {'taken' if done.taken else later}"

        sends = f"{timer.due.type} {json_text(timer.due.value)}"
        happens = f"It sends {sends} now." if action is Action.FIRE else f"It will never send {sends}."
        title = f"{action.value.capitalize()} timer {timer.name} of {name} {timer.key}"
        return Act(title, f"{happens} A worker takes the order like any input.", line, do, needs_reason=True)


def workers(visitor: Visitor) -> None:
    """The page of workers: how many each part has, the partitions of each member, and what they record."""
    heading(
        "Workers", "What is at work for each part, with its partitions, and how it goes while this console is open."
    )
    for title, make in _PARTS.items():
        with panel(title):
            survey_html(visitor, partial(make, visitor))


def _deciders(visitor: Visitor, result: SurveyResult) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href("/streams", category=row["name"])),
            state_of(result, "decider", row["name"]),
            row["version"],
            row["partitions"],
            row["workers"],
            f"{row['offsets']:,}",
            _course(visitor, "decider", row["name"], "offsets", is_rate=True),
            f"{row['per_command']:,} B",
            f"{row['answers_dropped']:,}",
            tag("a", row["dead"], href=visitor.href("/dead", name=row["name"])),
        )
        for row in result.rows
        if row["kind"] == "decider"
    ]
    columns = ("decider", "state", "version#", "partitions#", "workers#", "offsets#", "growth", "state/command#")
    nothing = empty_text(result, "These Apps decide nothing.")
    shown = table((*columns, "answers dropped#", "dead#"), rows, label="Deciders", empty=nothing)
    return server_problems(visitor, result) + shown


def _reactions(visitor: Visitor, result: SurveyResult) -> Html:
    rows = [
        (
            row["name"],
            state_of(result, row["kind"], row["name"]),
            row["kind"],
            row["events"],
            row["running"],
            number_text(row.get("lag")),
            _course(visitor, row["kind"], row["name"], "lag"),
            tag("a", row["parked"], href=visitor.href("/dead")) if "parked" in row else "",
        )
        for row in result.rows
        if row["kind"] in ("reaction", "stream")
    ]
    columns = ("name", "state", "kind", "reads", "processes#", "lag#", "course of lag", "parked#")
    nothing = empty_text(result, "These Apps have neither.")
    return table(columns, rows, label="Reactions and streams", empty=nothing)


def _views(visitor: Visitor, result: SurveyResult) -> Html:
    rows = [
        (
            tag("a", row["name"], href=visitor.href(f"/views/{row['name']}")),
            state_of(result, "view", row["name"]),
            row.get("projectors", ""),
            number_text(row.get("lag")),
            age_text(row.get("behind")),
            _course(visitor, "view", row["name"], "lag"),
            time_text(row.get("time")),
        )
        for row in result.rows
        if row["kind"] == "view" and row.get("live")
    ]
    columns = ("view", "state", "projectors#", "lag#", "behind#", "course of lag", "last event")
    return table(columns, rows, label="Projectors", empty=empty_text(result, "No view is live."))


def _members(visitor: Visitor, result: SurveyResult) -> Html:
    """The members of consumer groups with their partitions; projectors of views have no group."""
    rows = [
        (
            row["name"],
            member["group"],
            tag("code", member["id"]),
            member["host"].lstrip("/"),
            ", ".join(f"{topic} {_numbers(found)}" for topic, found in sorted(member["partitions"].items())) or "none",
        )
        for row in result.rows
        for member in row.get("members", ())
    ]
    nothing = empty_text(result, "Nothing is at work.")
    return table(("of", "group", "member", "at", "partitions"), rows, label="Members", empty=nothing)


def _numbers(partitions: Sequence[int]) -> str:
    """Numbers of partitions, those in a row as `0–11`."""
    runs: list[list[int]] = []
    for number in partitions:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in runs)


def _recorded(visitor: Visitor, result: SurveyResult) -> Html:
    """What workers record themselves since the survey before: rates and durations, and how each part of the run is."""
    if (scrape := result.scrape) is None:
        line = visitor.console.shell("console", "--metrics", visitor.console.metrics or "127.0.0.1:9464")
        why = "Rates, durations, restarts and memory come from where `leftfold run --metrics` serves; name it:"
        return tag("p", why, " ", command(line), cls="lf-quiet")
    rows = [
        (
            row["name"],
            row["kind"],
            "" if row["rate"] is None else f"{row['rate']:,.1f}",
            number_text(row["batches"]),
            "" if row["per_batch"] is None else f"{row['per_batch']:,.1f}",
            *("" if row[name] is None else f"{row[name] * 1000:,.0f} ms" for name in ("p50", "p99")),
            f"{scrape.rotations.get((row['kind'], row['name']), 0.0):,.0f}",
        )
        for row in result.rates
    ]
    parts = [
        (part, f"{scrape.restarts.get(part, 0.0):,.0f}", f"{scrape.memory.get(part, 0.0) / 2**20:,.0f} MiB")
        for part in sorted({*scrape.restarts, *scrape.memory})
    ]
    columns = ("of", "kind", "records/s#", "batches#", "records/batch#", "p50#", "p99#", "producers replaced#")
    batches = table(columns, rows, label="Batches", empty="Nothing was recorded yet.")
    run = table(("part", "restarts#", "memory#"), parts, label="Parts of the run", empty="No part answers.")
    return batches + tag("h3", "Parts of the run") + run


_PARTS = {
    "Deciders": _deciders,
    "Projectors of views": _views,
    "Reactions and streams": _reactions,
    "Members": _members,
    "What they record": _recorded,
}


def _course(visitor: Visitor, kind: str, name: str, field: str, *, is_rate: bool = False) -> Html:
    """The last values of a field as a line; of a counter how many came each second."""
    found = [
        (result.time, row[field])
        for result in visitor.console.survey.history
        for row in result.rows
        if row["kind"] == kind and row["name"] == name and row.get("live", True) and row.get(field) is not None
    ]
    if not is_rate:
        return course_of([float(value) for _, value in found], label=f"Course of {field} of {name}")
    rates = [max(0.0, (b - a) / (u - t)) for (t, a), (u, b) in pairwise(found) if u > t]
    text = f"{rates[-1]:,.1f}/s " if rates else ""
    return tag("span", text, course_of(rates, label=f"Growth of {name}"))
