"""What `leftfold timers` puts together: the timers of a process, how late it is there, and orders of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from types import TracebackType
from typing import Any, Self

from leftfold import names
from leftfold.app import App
from leftfold.cli.console import amount, note
from leftfold.cli.failures import Usage, unknown
from leftfold.cli.last_records import last_records
from leftfold.codec import header
from leftfold.connection import kafka_settings, ring
from leftfold.engine.timer_order import Order, SetTimer, order_record
from leftfold.engine.timer_table import TimerTable
from leftfold.engine.told_time import ToldTime, told_time
from leftfold.errors import InfrastructureError
from leftfold.partitioner import partition_of
from leftfold.position import Position
from leftfold.process import Process

__all__ = ["Ordered", "TimerWork", "process_of", "time_of"]

_MARKS = 3000
"""Routers write a few marks a second; their topic forgets them after ten minutes."""
_NAMED = 10


@dataclass(frozen=True)
class Ordered:
    """An order that stands in the log: where, and whether a worker was seen to take it."""

    offset: int
    id: str
    timer: SetTimer
    taken: bool


def process_of(app: App, name: str) -> Process[Any, Any, Any]:
    """The process of a name.

    Raises:
        Usage: the App has none such.
    """
    for process in app.processes:
        if process.name == name:
            return process
    raise unknown(f"process in app {app.name} called", name, (process.name for process in app.processes))


def time_of(cluster: Any, settings: Any, app: App, process: Process[Any, Any, Any], *, before: float = inf) -> ToldTime:
    """How late it is for a process, as far as its routers have said before some time, in seconds since 1970."""
    topics = [names.events(category) for category in process.categories]
    counts: Mapping[str, int] = cluster.partition_counts(topics)
    sources = [f"{source}/{p}" for source in topics for p in range(counts.get(source, 0))]
    marks = last_records(cluster, settings, names.time(process.name), _MARKS)
    return told_time((mark for mark in marks if mark.time / 1000 <= before), sources, app.lateness)


class TimerWork:
    """The timers of one process, read from its state topic.

    Args:
        key: the only instance that is asked for; '' = all, and every partition is read.

    Raises:
        InfrastructureError: this version of the process has never run.
    """

    def __init__(self, app: App, process: Process[Any, Any, Any], kafka: str | None, key: str = "") -> None:
        self._app, self._process, self._settings = app, process, kafka_settings(kafka)
        self._cluster: Any = ring("leftfold.kafka.cluster").Cluster(self._settings)
        topic = names.state(process.name, process.version)
        counts = self._cluster.partition_counts([topic])
        if topic not in counts:
            self._cluster.close()
            raise InfrastructureError(
                f"{topic} does not exist: process {process.name} has never run in version {process.version}; start "
                f"it: leftfold run {process.name}"
            )
        starts: Position = self._cluster.starts([topic])
        if key:
            starts = starts.only([topic], partition_of(key.encode(), counts[topic]))
        self._reader: Any = ring("leftfold.kafka.reader").KafkaLogReader(self._settings)
        self.table = TimerTable(self._reader, topic, starts)

    def __enter__(self) -> Self:
        self.table.read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()
        self._cluster.close()

    def told_time(self) -> ToldTime:
        """How late it is."""
        return time_of(self._cluster, self._settings, self._app, self._process)

    def workers(self) -> int:
        """How many workers the process has."""
        name = self._process.name
        found: dict[str, int] = self._cluster.owners(name)
        return found.get(names.group(self._app.name, name), 0)

    def timer(self, key: str, name: str) -> SetTimer:
        """The timer of a name.

        Raises:
            Usage: it is not set; what is, is named.
        """
        found = {timer.name: timer for timer in self.table.timers(key)}
        if name in found:
            return found[name]
        process = self._process.name
        if found:
            raise unknown(f"timer set in {process} {key!r} called", name, found)
        if key in self.table.keys:
            raise Usage(f"no timer is set in {process} {key!r}; it may have fired or been cancelled. See: "
                        f"leftfold timers list {process}")  # fmt: skip
        known = sorted({timer.key for timer in self.table.timers()})
        near = get_close_matches(key, known, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        others = f"\nwith timers: {', '.join(known[:_NAMED])}" if known else ""
        more = f" and {amount(len(known) - _NAMED, 'other')}" if len(known) > _NAMED else ""
        raise Usage(f"process {process} has no instance {key!r}{hint}{others}{more}")

    def give(self, timer: SetTimer, order: Order, seconds: float) -> Ordered:
        """Writes an order and waits until a worker has taken it, or something else has ended the timer."""
        out, topic = order_record(self._app.name, self._process.name, timer, order), names.commands(self._process.name)
        id_ = header(out.headers, "ce_id").decode()
        offset = ring("leftfold.kafka.one_record").write_record(self._settings, topic, out)
        try:
            return Ordered(offset, id_, timer, self.table.await_taken(timer, seconds))
        except KeyboardInterrupt:
            note(f"interrupted; order {id_} stands in {topic}[{timer.partition}]@{offset}, and is taken like any input")
            raise
