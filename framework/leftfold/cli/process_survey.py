"""Looks at processes: how far routers and workers are, which timers are overdue, and what nobody could react to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from leftfold import names
from leftfold.app import App
from leftfold.cli.burials import dead_waiting
from leftfold.cli.console import amount, lasting
from leftfold.cli.freshness import Freshness
from leftfold.cli.timerline import row_of
from leftfold.cli.timing import time_of
from leftfold.connection import ring
from leftfold.engine.log_time import SILENCE
from leftfold.engine.timer_table import TimerTable
from leftfold.errors import LeftfoldError, LogHole
from leftfold.position import Position
from leftfold.process import Process

__all__ = ["ProcessSurvey"]

Row = dict[str, Any]
_FAR = 10.0
"""Seconds behind which nobody takes for work under way."""
_STATES = 500_000
"""How many offsets of states a look reads at most."""


class ProcessSurvey:
    """Rows about processes; `problems` are told below them.

    Args:
        groups: questions to the cluster. settings: how to reach it. freshness: tells how old a record is.
    """

    def __init__(self, app: App, groups: Any, settings: Any, freshness: Freshness) -> None:
        self._app, self._groups, self._settings, self._freshness = app, groups, settings, freshness
        self._topics: dict[str, int] = groups.topics()
        self.problems: list[str] = []

    def row(self, process: Process[Any, Any, Any]) -> Row:
        """A process with its workers, its routers, how many inputs it was given in offsets, and what is left to do."""
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
        waiting, told = dead_waiting(self._groups, self._settings, name)
        self.problems += [f"process {name}: {problem}" for problem in told]
        return row | self._timers(process) | {"dead": waiting}

    def _age(self, of: str, topics: Iterable[str], what: str) -> float | None:
        """How old the first record is that a group has not committed; None = nobody can tell."""
        there = [topic for topic in topics if topic in self._topics]
        name = of.removesuffix(".router")
        try:
            committed = self._groups.committed(names.group(self._app.name, of), there).offsets
            age = self._freshness.seconds(Position({topic: committed.get(topic, {}) for topic in there}))
        except LogHole as error:
            mend = f"if what is gone need not reach it: leftfold log skip {name}"
            self.problems.append(f"process {name} stands before the start of a topic: {error}; {mend}")
            return None
        except LeftfoldError as error:
            self.problems.append(f"nobody can tell how far process {name} is behind: {error}")
            return None
        if age > _FAR:
            self.problems.append(
                f"process {name}: {what} that was written {lasting(age)} ago; see whether they move: leftfold status. "
                f"If they do not, what leftfold run {name} logs says why"
            )
        return round(age, 3)

    def _timers(self, process: Process[Any, Any, Any]) -> Row:
        """How many timers are set, and how many are overdue by what routers said a while ago.

        By what they say right now, some are due at any time whose worker has not heard of it yet.
        """
        topic = names.state(process.name, process.version)
        if topic not in self._topics:
            return {"timers": 0, "overdue": 0, "held": 0}
        starts, ends = self._groups.starts([topic]), self._groups.ends([topic]).offsets[topic]
        if sum(end - starts.next_offset(topic, p) for p, end in ends.items()) > _STATES:
            return {"timers": None, "overdue": None, "held": None}
        told = time_of(self._groups, self._settings, self._app, process, before=time.time() - _FAR)
        try:
            with closing(ring("leftfold.kafka.reader").KafkaLogReader(self._settings)) as reader:
                table = TimerTable(reader, topic, starts)
                table.read()
                rows = [row_of(process.name, timer, told) for timer in table.timers()]
        except LeftfoldError as error:
            self.problems.append(f"nobody can tell which timers of {process.name} are set: {error}")
            return {"timers": None, "overdue": None, "held": None}
        overdue = sorted((row for row in rows if row["overdue"]), key=lambda row: (row["due"], row["key"]))
        if overdue:
            first = overdue[0]
            self.problems.append(
                f"process {process.name}: {amount(len(overdue), 'timer')} overdue, first {first['timer']} of "
                f"{first['key']}, due {first['due']}; see: leftfold timers list {process.name}"
            )
        now = datetime.now(UTC).isoformat()
        held = [row for row in rows if not row["overdue"] and row["due"] <= now and told.late >= SILENCE]
        if held:
            self.problems.append(
                f"process {process.name}: {amount(len(held), 'timer')} held back by {told.slowest}, whose last event "
                f"came {lasting(told.late.total_seconds())} late; if they are not to do so: App(..., lateness=...)"
            )
        return {"timers": len(rows), "overdue": len(overdue), "held": len(held)}
