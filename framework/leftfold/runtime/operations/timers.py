"""Timers of processes as operators see them: their rows, log time, and orders to fire or cancel one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from math import inf
from typing import Any, Self

from leftfold.engine.processing.log_time import SILENCE, WatermarkStatus, reported_time
from leftfold.engine.processing.timer_admin import Order, SetTimer, TimerTable, order_record
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import record_at, write_record
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.process import Process
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import Closing
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, note
from leftfold.runtime.project import Usage, member_of, unknown
from leftfold.runtime.servers import last_records

__all__ = [
    "InstanceTable",
    "Ordered",
    "TimerWork",
    "is_held",
    "keys_by_state",
    "log_time_now",
    "process_of",
    "row_of",
    "time_of",
]

_MARKS = 3000
"""Watermarks that are read back: routers write a few a second, and their topic keeps them for ten minutes."""
_NAMED = 10


@dataclass(frozen=True)
class Ordered:
    """An order in the log: its offset, its id, and whether a worker was seen to take it."""

    offset: int
    id: str
    timer: SetTimer
    taken: bool


def process_of(app: App, name: str) -> Process[Any, Any, Any]:
    """The process of a name.

    Raises:
        Usage: the App has no such process.
    """
    return member_of(app, "process", app.processes, name)


def time_of(
    cluster: Any, settings: Any, app: App, process: Process[Any, Any, Any], *, before: float = inf
) -> WatermarkStatus:
    """Log time of a process, by what its routers had reported before a time, in seconds since 1970."""
    topics = [names.events(category) for category in process.categories]
    counts: Mapping[str, int] = cluster.partition_counts(topics)
    sources = [f"{source}/{p}" for source in topics for p in range(counts.get(source, 0))]
    watermarks = last_records(cluster, settings, names.time(process.name), _MARKS)
    return reported_time((mark for mark in watermarks if mark.time / 1000 <= before), sources, app.lateness)


_WAITING = b'"waiting":'
_FIRST_WAITING = re.compile(rb'"waiting":\{"([^"]+)"')
_FINISHED = b'"finished":true}'


class InstanceTable(TimerTable):
    """A timer table that also knows the command that each instance waits for, by its id, and which have finished."""

    def __init__(self, reader: Any, topic: str, starts: Position, key: str = "") -> None:
        super().__init__(reader, topic, starts, key)
        self.waiting: dict[str, str] = {}
        self.finished: set[str] = set()

    def _keep(self, key: str, value: bytes, partition: int) -> None:
        super()._keep(key, value, partition)
        self.finished.discard(key)
        if value.endswith(_FINISHED):
            self.finished.add(key)
        self.waiting.pop(key, None)
        # As for timers, the last such field is the record's own.
        if sent := _FIRST_WAITING.match(value, value.rindex(_WAITING)):
            self.waiting[key] = sent[1].decode(errors="replace")


class TimerWork(Closing):
    """The timers of one process, read from its state topic.

    Args:
        key: the only instance to read; '' = all instances, from every partition.
        most: how many offsets of states may be read.

    Raises:
        InfrastructureError: this version of the process has never run. Usage: it has more states than `most` allows.
    """

    def __init__(
        self, app: App, process: Process[Any, Any, Any], kafka: str | None, key: str = "", most: int = sys.maxsize
    ) -> None:
        self._app, self._process, self._settings = app, process, kafka_settings(kafka)
        self._cluster: Any = ClusterAdmin(self._settings)
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
        elif (count := self._cluster.ends([topic]).ahead_of(starts)) > most:
            self._cluster.close()
            raise Usage(
                f"{topic} has {count:,} offsets, too many to be read here; name an instance, or see all timers: "
                f"leftfold timers list {process.name}"
            )
        self._reader: Any = KafkaLogReader(self._settings)
        self.table = InstanceTable(self._reader, topic, starts, key)

    def __enter__(self) -> Self:
        self.table.read()
        return self

    def close(self) -> None:
        """Closes the connections."""
        self._reader.close()
        self._cluster.close()

    def reported_time(self, *, before: float = inf) -> WatermarkStatus:
        """The log time of the process, by what was reported before a time in seconds since 1970."""
        return time_of(self._cluster, self._settings, self._app, self._process, before=before)

    def instance(self) -> Mapping[str, Any] | None:
        """The state of the instance that was named, how many inputs it took, and what it waits for; None = unknown."""
        if not self.table.instance:
            return None
        found = json.loads(self.table.instance)
        return {"inputs taken": found["version"]} | {
            name: found[name] for name in ("finished", "state", "waiting") if name in found
        }

    def input_id(self) -> str:
        """The id of an event that the named instance took; '' = the log holds none any more."""
        taken = json.loads(self.table.instance or b"{}").get("origins", {})
        for source, (offset, _) in taken.items():
            topic, _, partition = source.rpartition("/")
            with suppress(ContractError, InfrastructureError):
                return header(record_at(self._settings, topic, int(partition), offset).headers, "ce_id").decode()
        return ""

    def workers(self) -> int:
        """The number of the process's workers."""
        members: int = self._cluster.groups().get(names.group(self._app.name, self._process.name), 0)
        return members

    def timer(self, key: str, name: str) -> SetTimer:
        """The timer of a name.

        Raises:
            Usage: it is not set; the timers that are set are named.
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

    def check_set(self, timer: SetTimer) -> None:
        """Checks that a timer is still set as it was read some time ago.

        Raises:
            Usage: it is not set any more, or it was set again meanwhile.
        """
        now = self.timer(timer.key, timer.name)
        if now.due != timer.due:
            raise Usage(
                f"timer {timer.name} of {self._process.name} {timer.key!r} was set again meanwhile, and is due "
                f"{now.due.at} now; look at it again. Nothing was changed"
            )

    def give(self, timer: SetTimer, order: Order, seconds: float) -> Ordered:
        """Writes an order and waits until a worker has taken it, or the timer has ended otherwise."""
        out, topic = order_record(self._app.name, self._process.name, timer, order), names.commands(self._process.name)
        id_ = header(out.headers, "ce_id").decode()
        offset = write_record(self._settings, topic, out)
        try:
            return Ordered(offset, id_, timer, self.table.await_taken(timer, seconds))
        except KeyboardInterrupt:
            note(f"interrupted; order {id_} stands in {topic}[{timer.partition}]@{offset}, and is taken like any input")
            raise


def log_time_now(watermark: WatermarkStatus) -> datetime:
    """The log time, or the time of this clock while it is unknown."""
    return watermark.now or datetime.now(UTC)


def row_of(process: str, timer: SetTimer, watermark: WatermarkStatus) -> dict[str, Any]:
    """A timer as a JSON object; `left` is in seconds of log time, None while log time is unknown."""
    due = datetime.fromisoformat(timer.due.at)
    left = None if watermark.now is None else (due - watermark.now).total_seconds()
    return {
        "process": process,
        "key": timer.key,
        "timer": timer.name,
        "due": timer.due.at,
        "log_time": watermark.now,
        "left": left,
        "overdue": left is not None and left <= 0,
        "sends": timer.due.type,
        "command": _body(timer.due.value),
        "by": timer.due.by,
        "correlation_id": timer.due.correlation,
        "partition": timer.partition,
    }


def is_held(row: Mapping[str, Any], watermark: WatermarkStatus) -> bool:
    """Whether the timer of a row would be due by the clock, and late events hold log time back."""
    return not row["overdue"] and row["due"] <= datetime.now(UTC).isoformat() and watermark.late >= SILENCE


def keys_by_state(
    table: InstanceTable, rows: Iterable[Mapping[str, Any]], watermark: WatermarkStatus
) -> dict[str, Sequence[str]]:
    """The keys of all instances by what they wait for, each once: those that are stuck first.

    Args:
        rows: of the timers in the table.
    """
    timers = list(rows)
    states = {
        "stuck: a timer is overdue": {row["key"] for row in timers if row["overdue"]},
        "held back by late events": {row["key"] for row in timers if is_held(row, watermark)},
        "waiting for a command": set(table.waiting),
        "waiting for a timer": {row["key"] for row in timers},
        "finished": table.finished,
        "waiting for an event": table.keys,
    }
    found, left = dict[str, Sequence[str]](), set(table.keys)
    for state, keys in states.items():
        found[state] = sorted(left & keys)
        left -= keys
    return found


def _body(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
