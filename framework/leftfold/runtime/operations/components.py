"""Surveys of workers, processes, reactions and streams for `status` and `doctor`, and the lateness of views."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from leftfold.engine.processing.log_time import SILENCE
from leftfold.engine.processing.timer_admin import TimerTable
from leftfold.errors import LeftfoldError, LogGap
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.reactions.parked import ParkedEvents
from leftfold.model import keys as names
from leftfold.model.app import App, Streaming
from leftfold.model.position import Position
from leftfold.model.process import Process
from leftfold.model.reaction import Reaction
from leftfold.model.view import REFRESH_SECONDS, View
from leftfold.ports.bulk import BulkLog, OffsetRange
from leftfold.runtime.connect import kafka_settings, open_bulk
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.operations.dead_letters import dead_waiting, standing_still
from leftfold.runtime.operations.timers import row_of, time_of

__all__ = [
    "Freshness",
    "survey_processes",
    "survey_reactions",
    "survey_streams",
    "survey_workers",
    "unknown_lateness",
    "why_late",
]


class Freshness:
    """The age of the first event behind a position; the archive is opened only for events that topics have lost.

    Args:
        archive: the archive with events that topics have lost; '' = none.
    """

    def __init__(self, kafka: str | None, archive: str) -> None:
        self._kafka, self._archive = kafka, archive
        self._logs: dict[str, BulkLog] = {}
        self._ends: dict[str, Mapping[int, int]] = {}
        self._found: dict[OffsetRange, int | None] = {}

    def seconds(self, position: Position) -> float:
        """Age in seconds of the oldest event behind a position; 0 when there is none.

        A position before a topic's end need not miss an event: transaction markers use offsets too, and events of an
        open transaction are not readable yet.

        Raises:
            LogGap: the next event is neither in its topic nor in the archive.
            InfrastructureError: the log cannot be read, or the archive is broken or belongs to another topic.
        """
        times = [
            found
            for topic in position.offsets
            for partition, end in self._stable_ends(topic).items()
            if (found := self._first(OffsetRange(topic, partition, position.next_offset(topic, partition), end)))
            is not None
        ]
        return max(0.0, time.time() - min(times) / 1000) if times else 0.0

    def _stable_ends(self, topic: str) -> Mapping[int, int]:
        if topic not in self._ends:
            self._ends[topic] = self._log().stable_ends([topic]).offsets.get(topic, {})
        return self._ends[topic]

    def _first(self, part: OffsetRange) -> int | None:
        """When the first event of a range was appended, in ms since 1970; None = the range has no event."""
        if part.start >= part.end:
            return None
        if part not in self._found:
            try:
                self._found[part] = _first_time(self._log(), part)
            except LogGap:
                if not self._archive:
                    raise
                self._found[part] = _first_time(self._log(self._archive), part)
        return self._found[part]

    def _log(self, archive: str = "") -> BulkLog:
        if archive not in self._logs:
            self._logs[archive] = open_bulk(kafka_settings(self._kafka), archive)()
        return self._logs[archive]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for log in self._logs.values():
            log.close()


def _first_time(log: BulkLog, part: OffsetRange) -> int | None:
    first = next((records[0] for records in log.read(part) if records), None)
    return first.timestamp()[1] if first is not None else None


_FOLDED, _COMPUTED = 5.0, 2 * REFRESH_SECONDS
"""Lateness in seconds up to which a view counts as up to date.

A silent projector counts as dead after three seconds.
"""


def why_late(view: View[Any, Any], *, behind: float, lag: int, tails: int) -> str:
    """The likely reason why a view is so many seconds and offsets behind; '' when it is not far behind."""
    if behind <= (_FOLDED if view.folded else _COMPUTED):
        return ""
    far = f"view {view.name} is {behind:.0f} s behind, lag {lag:,}"
    if view.streamed:
        return f"{far}; its own stream keeps it: see whether that is at work"
    if not view.folded:
        return f"{far}; Spark computes it while this is at work: leftfold run {view.name}"
    if not tails:
        return (
            f"{far}, and no tail is at work on it, or one that hangs (a stream on Spark does not show itself); "
            f"start one: leftfold run {view.name}"
        )
    are = "is" if tails == 1 else "are"
    return (
        f"{far}, although {amount(tails, 'tail')} {are} at work: it catches up, was stopped, or hangs. See whether it "
        f"moves: leftfold status; another takes over from one that hangs: leftfold run {view.name}"
    )


def unknown_lateness(view: View[Any, Any], error: Exception) -> str:
    """The problem line for a view whose lateness in seconds is unknown."""
    if isinstance(error, LogGap):
        return f"view {view.name} stands before the start of what its topic still holds: {error}"
    return f"it is not known how many seconds view {view.name} is behind: {error}"


Row = dict[str, Any]
_FAR = 10.0
"""Lateness in seconds up to which a process or stream counts as up to date."""
_STATES = 500_000
"""Most offsets of the state topic that one survey reads."""


def survey_workers(app: App, cluster: Any, settings: Any, problems: list[str]) -> dict[str, int]:
    """The number of workers of each decider; what the operator must do is added to `problems`."""
    found: dict[str, int] = {}
    for decider in app.deciders:
        name = decider.name
        found[name] = cluster.owners(name).get(names.group(app.name, name), 0)
        if not found[name]:
            problems.append(f"no worker decides {names.commands(name)}; start: leftfold run {name}")
        problems += standing_still(cluster, settings, name, decider.version)
    return found


def survey_processes(app: App, kafka: str | None, problems: list[str]) -> Iterator[Row]:
    """A row for each process, with the backlog of its routers and workers, and its timers.

    What the operator must do is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    settings = kafka_settings(kafka)
    with Groups(settings) as groups, Freshness(kafka, "") as freshness:
        survey = _ProcessSurvey(app, groups, settings, freshness, problems)
        yield from map(survey.row, app.processes)


class _ProcessSurvey:
    """The rows about processes.

    Args:
        groups: consumer groups and topics of the cluster. settings: how to reach it. freshness: the age of records.
    """

    def __init__(self, app: App, groups: Any, settings: Any, freshness: Freshness, problems: list[str]) -> None:
        self._app, self._groups, self._settings, self._freshness = app, groups, settings, freshness
        self._topics: dict[str, int] = groups.topics()
        self.problems = problems

    def row(self, process: Process[Any, Any, Any]) -> Row:
        """The row of a process: its workers, its routers, its inputs in offsets, and its backlog."""
        name, inputs = process.name, names.commands(process.name)
        row: Row = {"kind": "process", "name": name, "version": process.version}
        row["partitions"] = self._topics.get(inputs, self._app.partitions)
        for what, of in (("workers", name), ("routers", f"{name}.router")):
            row[what] = self._groups.owners(of).get(names.group(self._app.name, of), 0)
            if not row[what]:
                self.problems.append(f"process {name} has no {what}; start: leftfold run {name}")
        ends = self._groups.ends([inputs]).offsets[inputs] if inputs in self._topics else {}
        row["inputs"] = sum(ends.values())
        events = [names.events(category) for category in process.categories]
        row["unrouted"] = self._age(f"{name}.router", events, "its routers have not routed an event")
        row["untaken"] = self._age(name, [inputs], "its workers have not taken an input")
        waiting, problems = dead_waiting(self._groups, self._settings, name)
        self.problems += [f"process {name}: {problem}" for problem in problems]
        return row | self._timers(process) | {"dead": waiting}

    def _age(self, of: str, topics: Iterable[str], what: str) -> float | None:
        """Age in seconds of the first record that a consumer group has not committed; None = unknown."""
        there = [topic for topic in topics if topic in self._topics]
        name = of.removesuffix(".router")
        try:
            committed = self._groups.committed(names.group(self._app.name, of), there).offsets
            age = self._freshness.seconds(Position({topic: committed.get(topic, {}) for topic in there}))
        except LogGap as error:
            skip = f"if the lost events need not reach it: leftfold log skip {name}"
            self.problems.append(f"process {name} stands before the start of a topic: {error}; {skip}")
            return None
        except LeftfoldError as error:
            self.problems.append(f"it is not known how far process {name} is behind: {error}")
            return None
        if age > _FAR:
            self.problems.append(
                f"process {name}: {what} that was written {lasting(age)} ago; see whether they move: leftfold status. "
                f"If they do not, what leftfold run {name} logs says why"
            )
        return round(age, 3)

    def _timers(self, process: Process[Any, Any, Any]) -> Row:
        """How many timers are set, and how many are overdue by the watermarks of ten seconds ago.

        By the newest watermarks some timers are always due that their worker has not read yet.
        """
        topic = names.state(process.name, process.version)
        if topic not in self._topics:
            return {"timers": 0, "overdue": 0, "held": 0}
        starts, ends = self._groups.starts([topic]), self._groups.ends([topic]).offsets[topic]
        if sum(end - starts.next_offset(topic, p) for p, end in ends.items()) > _STATES:
            return {"timers": None, "overdue": None, "held": None}
        watermark = time_of(self._groups, self._settings, self._app, process, before=time.time() - _FAR)
        try:
            with closing(KafkaLogReader(self._settings)) as reader:
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
        now = datetime.now(UTC).isoformat()
        held = [row for row in rows if not row["overdue"] and row["due"] <= now and watermark.late >= SILENCE]
        if held:
            self.problems.append(
                f"process {process.name}: {amount(len(held), 'timer')} held back by {watermark.slowest}, whose last "
                f"event came {lasting(watermark.late.total_seconds())} late; if they are not to do so: "
                "App(..., lateness=...)"
            )
        return {"timers": len(rows), "overdue": len(overdue), "held": len(held)}


def survey_reactions(app: App, kafka: str | None, problems: list[str]) -> Iterator[Row]:
    """A row for each reaction, with its lag in offsets; what the operator must do is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    settings = kafka_settings(kafka)
    with Groups(settings) as groups:
        topics: dict[str, int] = groups.topics()
        for reaction in app.reactions:
            name, group = reaction.name, names.reacting(app.name, reaction.name)
            running = groups.owners(f"{name}.reaction").get(group, 0)
            if not running:
                problems.append(f"no process acts for reaction {name}; start: leftfold run {name}")
            row: Row = {"kind": "reaction", "name": name, "events": ", ".join(reaction.categories), "running": running}
            row |= {"lag": None, "parked": 0}
            if names.dead(name) in topics and names.begun(name) in topics:
                row["lag"] = _lag(groups, reaction, group, topics)
                row["parked"] = ParkedEvents(name, settings).count()
            if row["parked"]:
                problems.append(f"reaction {name} has parked {row['parked']:,}; see: leftfold reactions parked {name}")
            yield row


def _lag(groups: Any, reaction: Reaction[Any], group: str, topics: dict[str, int]) -> int | None:
    """How many offsets a reaction is behind; None = it has never begun."""
    found = [names.events(category) for category in reaction.categories if names.events(category) in topics]
    ends: Position = groups.ends(found)
    done: Position = groups.committed(group, found)
    return ends.ahead_of(done) if done.offsets else None


def survey_streams(app: App, kafka: str | None, problems: list[str]) -> Iterator[Row]:
    """A row for each stream, with its lag in offsets and in seconds; what the operator must do is added to `problems`.

    Raises:
        InfrastructureError: no broker answers.
    """
    settings = kafka_settings(kafka)
    with Groups(settings) as groups, Freshness(kafka, "") as freshness:
        topics, streams = groups.topics(), groups.streams()
        for stream in app.streams:
            found = streams.get((app.name, stream.name))
            running = found.running if found else 0
            if not running:
                problems.append(f"no process is at work on stream {stream.name}; start: leftfold run {stream.name}")
            row: Row = {"kind": "stream", "name": stream.name, "events": ", ".join(stream.categories)}
            row |= {"views": ", ".join(view.name for view in stream.views), "running": running}
            read = [names.events(category) for category in stream.categories if names.events(category) in topics]
            ends: Position = groups.ends(read)
            committed = [groups.committed(group, read) for group in found.current] if found else [Position()]
            done = max(committed, key=ends.ahead_of)
            row["lag"] = ends.ahead_of(done) if done.offsets else None
            row["behind"] = _behind(stream, freshness, Position({t: done.offsets.get(t, {}) for t in read}), problems)
            yield row


def _behind(stream: Streaming, freshness: Freshness, position: Position, problems: list[str]) -> float | None:
    """Age in seconds of the first event that a stream has not acknowledged; None = unknown."""
    try:
        behind = float(freshness.seconds(position))
    except LeftfoldError as error:
        problems.append(f"it is not known how far stream {stream.name} is behind: {error}")
        return None
    if behind > _FAR:
        problems.append(
            f"stream {stream.name} has not acknowledged an event that was written {lasting(behind)} ago; see whether "
            f"it moves: leftfold status. If it does not, what leftfold run {stream.name} logs says why"
        )
    return round(behind, 3)
