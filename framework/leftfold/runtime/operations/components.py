"""Surveys of workers, processes, reactions and streams for `status` and `doctor`, and the lateness of views."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from leftfold.engine.processing.timer_admin import TimerTable
from leftfold.errors import LeftfoldError, LogGap
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.reactions.parked import ParkedEvents
from leftfold.model import keys as names
from leftfold.model.app import App, Streaming
from leftfold.model.position import Position
from leftfold.model.process import Process
from leftfold.model.reaction import Reaction
from leftfold.model.view import REFRESH_SECONDS, View
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.dead_letters import dead_waiting, standing_still
from leftfold.runtime.operations.timers import is_held, row_of, time_of

__all__ = [
    "MOST_STATES",
    "survey_processes",
    "survey_reactions",
    "survey_streams",
    "survey_workers",
    "unknown_lateness",
    "why_late",
]


_FOLDED, _COMPUTED = 5.0, 2 * REFRESH_SECONDS
"""Lateness in seconds up to which a view counts as up to date.

A silent projector counts as dead after three seconds.
"""


def why_late(view: View[Any, Any], *, behind: float, lag: int, projectors: int) -> str:
    """The likely reason why a view is so many seconds and offsets behind; '' when it is not far behind."""
    if behind <= (_FOLDED if view.folded else _COMPUTED):
        return ""
    far = f"view {view.name} is {behind:.0f} s behind, lag {lag:,}"
    if view.streamed:
        return f"{far}; its own stream keeps it: see whether that is at work"
    if not view.folded:
        return f"{far}; Spark computes it while this is at work: leftfold run {view.name}"
    if not projectors:
        return (
            f"{far}, and no projector is at work on it, or one that hangs (a stream on Spark does not show itself); "
            f"start one: leftfold run {view.name}"
        )
    are = "is" if projectors == 1 else "are"
    return (
        f"{far}, although {amount(projectors, 'projector')} {are} at work: it catches up, was stopped, or hangs. See "
        f"whether it moves: leftfold status; another takes over from one that hangs: leftfold run {view.name}"
    )


def unknown_lateness(view: View[Any, Any], error: Exception) -> str:
    """The problem line for a view whose lateness in seconds is unknown."""
    if isinstance(error, LogGap):
        return f"view {view.name} stands before the start of what its topic still holds: {error}"
    return f"it is not known how many seconds view {view.name} is behind: {error}"


Row = dict[str, Any]
FAR = 10.0
"""Lateness in seconds up to which a process or stream counts as up to date."""
MOST_STATES = 500_000
"""Most offsets of the state topic that one survey reads."""


def survey_workers(app: App, state: ClusterState, problems: list[str]) -> Iterator[Row]:
    """A row for each decider, with its workers and the commands that wait; what is to be done is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    for decider in app.deciders:
        name, commands = decider.name, names.commands(decider.name)
        row: Row = {"kind": "decider", "name": name, "version": decider.version}
        row["workers"] = state.members(group := names.group(app.name, name))
        row["members"] = state.assigned(group)
        if not row["workers"]:
            problems.append(f"no worker decides {commands}; start: leftfold run {name}")
        problems += standing_still(state, name, decider.version)
        yield row | _commands_waiting(app, state, name, problems)


def _commands_waiting(app: App, state: ClusterState, name: str, problems: list[str]) -> Row:
    """How many offsets of commands wait, and the age of the first one in seconds; None = unknown."""
    topics = state.there([names.commands(name)])
    # Commands that were deleted with time were answered, or their senders have long stopped waiting.
    done = state.starts(topics) | state.committed(names.group(app.name, name), topics)
    lag = state.stable_ends(topics).ahead_of(done)
    try:
        behind = state.seconds_behind(done) if lag else 0.0
    except LeftfoldError as error:
        problems.append(f"it is not known how far decider {name} is behind: {error}")
        return {"lag": lag, "behind": None, "done": _sum(done)}
    if behind > FAR:
        problems.append(
            f"decider {name}: its workers have not taken a command that was written {lasting(behind)} ago; see whether "
            f"they move: leftfold status. If they do not, their log says why"
        )
    return {"lag": lag, "behind": round(behind, 3), "done": _sum(done)}


def _sum(done: Position) -> int:
    """How many offsets lie before a position."""
    return done.ahead_of(Position())


def survey_processes(app: App, state: ClusterState, problems: list[str], most: int = MOST_STATES) -> Iterator[Row]:
    """A row for each process, with the backlog of its routers and workers, and its timers.

    What the operator must do is added to `problems`.

    Args:
        most: the timers of a process are counted where its state topic has no more offsets.

    Raises:
        InfrastructureError: no broker answers.
    """
    survey = _ProcessSurvey(app, state, problems, most)
    yield from map(survey.row, app.processes)


class _ProcessSurvey:
    """The rows about processes."""

    def __init__(self, app: App, state: ClusterState, problems: list[str], most: int) -> None:
        self._app, self._state, self._most, self.problems = app, state, most, problems

    def row(self, process: Process[Any, Any, Any]) -> Row:
        """The row of a process: its workers, its routers, its inputs in offsets, and its backlog."""
        name, inputs, state = process.name, names.commands(process.name), self._state
        row: Row = {"kind": "process", "name": name, "version": process.version}
        row["partitions"] = state.topics.get(inputs, self._app.partitions)
        groups = {"workers": names.group(self._app.name, name), "routers": names.routing(self._app.name, name)}
        for what, group in groups.items():
            row[what] = state.members(group)
            if not row[what]:
                self.problems.append(f"process {name} has no {what}; start: leftfold run {name}")
        row["members"] = state.assigned(*groups.values())
        row["inputs"] = sum(state.ends([inputs]).offsets.get(inputs, {}).values())
        events = [names.events(category) for category in process.categories]
        routed = self._age(name, groups["routers"], events, "its routers have not routed an event")
        taken = self._age(name, groups["workers"], [inputs], "its workers have not taken an input")
        row |= {"unrouted": routed[1], "unrouted_lag": routed[0], "unrouted_done": routed[2]}
        row |= {"untaken": taken[1], "lag": taken[0], "done": taken[2]}
        waiting, problems = dead_waiting(state, name)
        self.problems += [f"process {name}: {problem}" for problem in problems]
        return row | self._timers(process) | {"dead": waiting}

    def _age(
        self, name: str, group: str, topics: Iterable[str], what: str
    ) -> tuple[int | None, float | None, int | None]:
        """How many offsets a consumer group has not committed, the age of the first in seconds, and how many it has.

        None = unknown.
        """
        there = self._state.there(topics)
        lag = done = None
        try:
            committed = self._state.committed(group, there).offsets
            position = Position({topic: committed.get(topic, {}) for topic in there})
            lag, done = self._state.stable_ends(there).ahead_of(position), _sum(position)
            age = self._state.seconds_behind(position)
        except LogGap as error:
            skip = f"if the lost events need not reach it: leftfold log skip {name}"
            self.problems.append(f"process {name} stands before the start of a topic: {error}; {skip}")
            return lag, None, done
        except LeftfoldError as error:
            self.problems.append(f"it is not known how far process {name} is behind: {error}")
            return lag, None, done
        if age > FAR:
            self.problems.append(
                f"process {name}: {what} that was written {lasting(age)} ago; see whether they move: leftfold status. "
                f"If they do not, their log says why"
            )
        return lag, round(age, 3), done

    def _timers(self, process: Process[Any, Any, Any]) -> Row:
        """How many timers are set, and how many are overdue by the watermarks of ten seconds ago.

        By the newest watermarks some timers are always due that their worker has not read yet.
        """
        topic = names.state(process.name, process.version)
        state = self._state
        if topic not in state.topics:
            return {"timers": 0, "overdue": 0, "held": 0}
        starts = state.starts([topic])
        if state.ends([topic]).ahead_of(starts) > self._most:
            return {"timers": None, "overdue": None, "held": None}
        watermark = time_of(state.admin, state.settings, self._app, process, before=time.time() - FAR)
        try:
            with closing(KafkaLogReader(state.settings)) as reader:
                table = TimerTable(reader, topic, starts)
                table.read()
                rows = [row_of(process.name, timer, watermark) for timer in table.timers()]
        except LeftfoldError as error:
            self.problems.append(f"it is not known which timers of {process.name} are set: {error}")
            return {"timers": None, "overdue": None, "held": None}
        overdue = sorted((row for row in rows if row["overdue"]), key=lambda row: (row["due"], row["key"]))
        if overdue:
            first = overdue[0]
            self.problems.append(
                f"process {process.name}: {amount(len(overdue), 'timer')} overdue, first {first['timer']} of "
                f"{first['key']}, due {first['due']}; see: leftfold timers list {process.name}"
            )
        held = [row for row in rows if is_held(row, watermark)]
        if held:
            self.problems.append(
                f"process {process.name}: {amount(len(held), 'timer')} held back by {watermark.slowest}, whose last "
                f"event came {lasting(watermark.late.total_seconds())} late; if they are not to do so: "
                "App(..., lateness=...)"
            )
        return {"timers": len(rows), "overdue": len(overdue), "held": len(held)}


def survey_reactions(app: App, state: ClusterState, problems: list[str]) -> Iterator[Row]:
    """A row for each reaction, with its lag in offsets; what the operator must do is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    for reaction in app.reactions:
        name, group = reaction.name, names.reacting(app.name, reaction.name)
        running = state.members(group)
        if not running:
            problems.append(f"no process acts for reaction {name}; start: leftfold run {name}")
        row: Row = {"kind": "reaction", "name": name, "events": ", ".join(reaction.categories), "running": running}
        row |= {"lag": None, "behind": None, "parked": 0, "members": state.assigned(group)}
        if names.dead(name) in state.topics and names.begun(name) in state.topics:
            row |= _acted(state, reaction, group)
            row["parked"] = ParkedEvents(name, state.settings).count()
        if row["parked"]:
            problems.append(f"reaction {name} has parked {row['parked']:,}; see: leftfold reactions parked {name}")
        yield row


def _acted(state: ClusterState, reaction: Reaction[Any], group: str) -> Row:
    """How many offsets and seconds a reaction is behind; None = it has never begun, or it is not known."""
    found = state.there(names.events(category) for category in reaction.categories)
    done = state.committed(group, found)
    if not done.offsets:
        return {}
    try:
        behind = round(state.seconds_behind(Position({topic: done.offsets.get(topic, {}) for topic in found})), 3)
    except LeftfoldError:  # a reaction begins behind what is lost, and names a gap itself
        return {"lag": state.ends(found).ahead_of(done), "done": _sum(done)}
    return {"lag": state.ends(found).ahead_of(done), "behind": behind, "done": _sum(done)}


def survey_streams(app: App, state: ClusterState, problems: list[str]) -> Iterator[Row]:
    """A row for each stream, with its lag in offsets and in seconds; what the operator must do is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    for stream in app.streams:
        found = state.streams.get((app.name, stream.name))
        running = found.running if found else 0
        if not running:
            problems.append(f"no process is at work on stream {stream.name}; start: leftfold run {stream.name}")
        row: Row = {"kind": "stream", "name": stream.name, "events": ", ".join(stream.categories)}
        row |= {"views": ", ".join(view.name for view in stream.views), "running": running}
        row["members"] = state.assigned(*(found.current if found else ()))
        read = state.there(names.events(category) for category in stream.categories)
        ends = state.ends(read)
        committed = [state.committed(group, read) for group in found.current] if found else [Position()]
        done = max(committed, key=ends.ahead_of)
        row["lag"] = ends.ahead_of(done) if done.offsets else None
        row["done"] = _sum(done)
        row["behind"] = _behind(stream, state, Position({t: done.offsets.get(t, {}) for t in read}), problems)
        yield row


def _behind(stream: Streaming, state: ClusterState, position: Position, problems: list[str]) -> float | None:
    """Age in seconds of the first event that a stream has not acknowledged; None = unknown."""
    try:
        behind = state.seconds_behind(position)
    except LeftfoldError as error:
        problems.append(f"it is not known how far stream {stream.name} is behind: {error}")
        return None
    if behind > FAR:
        problems.append(
            f"stream {stream.name} has not acknowledged an event that was written {lasting(behind)} ago; see whether "
            f"it moves: leftfold status. If it does not, its log says why"
        )
    return round(behind, 3)
