"""The processors of an App over a log in memory: deciders, processes, routers, timers and event time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar

from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.engine.processing.log_time import SILENCE, SourceTime, Watermark
from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.engine.processing.process_wire import ACK, Router, Unusable
from leftfold.engine.processing.timer_admin import SetTimer
from leftfold.errors import ConfigurationError, ContractError
from leftfold.memory.event_log import MemoryLog
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.process import Process
from leftfold.model.state_codec import time_at, time_in
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Batch, Outgoing
from leftfold.ports.protocols import RawRecord

__all__ = ["Flow", "RoutedTopics"]


class RoutedTopics:
    """The topics whose events are routed to a process, with their watermarks.

    Args:
        lateness: how late an event may be and still hold back the watermark; None = without limit.
    """

    def __init__(self, log: MemoryLog, topics: Iterable[str], lateness: timedelta | None = None) -> None:
        self._log, self._topics, self._lateness = log, tuple(topics), lateness

    def watermark(self, now: datetime, inputs: Mapping[int, int]) -> Watermark:
        """The watermark, given the end offsets of the inputs."""
        return Watermark({name: SourceTime(at.time, at.appended, now) for name, at in self._last()}, inputs)

    def changes(self, timer: datetime) -> Iterator[datetime]:
        """The times at which a timer may become due: its own, and those that late events lead to."""
        yield timer
        for _, at in self._last():
            if at.appended is not None and at.late >= SILENCE:
                with suppress(OverflowError):  # a timer that is never due
                    yield timer + at.late
                yield at.appended + SILENCE

    def _last(self) -> Iterator[tuple[str, SourceTime]]:
        for topic in self._topics:
            for partition, records in enumerate(self._log.of(topic)):
                at = SourceTime()
                if records and (time := time_in(header(records[-1].headers, "ce_time"))):
                    at = SourceTime(time, time_at(records[-1].time)).within(self._lateness)
                yield f"{topic}/{partition}", at


_LOGGER = logging.getLogger(__name__)
_LONGEST_CHAIN = 100_000
L = TypeVar("L", bound=PartitionProcessor[Any])


class Flow:
    """The processors of an App over a log in memory; `run` continues until there is no more input.

    Args:
        clock: the wall clock, which gives records their append time.

    Raises:
        ConfigurationError: no decider here decides a command that a process sends.
    """

    def __init__(self, app: App, log: MemoryLog, clock: Callable[[], datetime]) -> None:
        self._app, self._log, self._clock = app, log, clock
        decided, processes = [d.name for d in app.deciders], [p.name for p in app.processes]
        for name in decided:
            log.create(names.events(name), app.partitions)
        for name in (*decided, *processes):
            log.create(names.commands(name), app.partitions)
            log.create(names.dead(name), app.partitions)
        for process in app.processes:
            _check_decided(app, process)
            for category in process.categories:
                log.create(names.events(category), app.partitions)
        self.processors = {d.name: self._assigned(self._command_processor(d)) for d in app.deciders}
        self._processes = {p.name: self._assigned(self._process_processor(p)) for p in app.processes}
        self._waiting: deque[RawRecord] = deque()
        self._chains: dict[bytes, tuple[int, str]] = {}
        self._unroutable: dict[str, ContractError] = {}
        self._stopped: dict[str, list[RawRecord]] = {}
        self._sources = {
            p.name: RoutedTopics(log, map(names.events, p.categories), app.lateness) for p in app.processes
        }
        self._routes = [
            (Router(app.name, p, self._home), log.reader(map(names.events, p.categories)), p.name)
            for p in app.processes
        ]

    def take(self, record: RawRecord) -> Batch:
        """Processes a record by the processor of its topic, and writes the output."""
        name = record.topic.removesuffix(names.commands(""))
        processor: PartitionProcessor[Any] = self.processors[name] if name in self.processors else self._processes[name]
        batch = processor.process([record])
        ends: dict[int, int] = {}
        for out in batch.events:
            ends[out.partition] = self._write(names.events(name), out).offset + 1
        for out in batch.dead:
            self._write(names.dead(name), out)
            _LOGGER.warning("%s: dead-lettered: %s", name, header(out.headers, "dead_reason").decode(errors="replace"))
        for topic, records in batch.sent.items():
            self._waiting.extend([self._write(topic, out) for out in records])
        processor.commit(batch, ends)
        return batch

    def run(self) -> None:
        """Routes events, processes commands and inputs, and fires timers due by log time, the earliest first.

        Raises:
            ConfigurationError: so many followed from one another that there may be no end of it.
        """
        self._chains.clear()
        while self._waiting or self._routed() or self._fired():
            while self._waiting:
                record = self._waiting.popleft()
                self._follow(record)
                if not self.left(record):
                    self.take(record)

    def _follow(self, record: RawRecord) -> None:
        """Counts how many events and commands led to a record since `run` began."""
        depth, before = self._chains.get(header(record.headers, "ce_causationid"), (0, ""))
        type_ = header(record.headers, "ce_type").decode(errors="replace")
        depth += type_ != before  # an input is the event that was routed
        self._chains[header(record.headers, "ce_id")] = depth, type_
        if depth > _LONGEST_CHAIN and type_.encode() != ACK:
            self._waiting.clear()
            raise ConfigurationError(
                f"more than {_LONGEST_CHAIN:,} events and commands followed from one another, the last {type_} from "
                f"{before}; a process that sends a command for each event that the command leads to may never end"
            )

    def left(self, record: RawRecord) -> bool:
        """Whether a record stays in its topic because its processor is stopped."""
        behind = self._stopped.get(record.topic.removesuffix(names.commands("")))
        if behind is not None:
            behind.append(record)
        return behind is not None

    def stop(self, name: str) -> None:
        """Stops a decider or process: records for it wait.

        Raises:
            ConfigurationError: there is none of that name.
        """
        if name not in self.processors and name not in self._processes:
            known = ", ".join([*self.processors, *self._processes])
            raise ConfigurationError(f"app {self._app.name} has no decider or process {name!r}; there are: {known}")
        self._stopped.setdefault(name, [])

    def start(self, name: str) -> None:
        """Starts a stopped decider or process, which processes the waiting records first."""
        self._waiting.extend(self._stopped.pop(name, []))

    def wakes(self) -> datetime | None:
        """When the next timer may become due without a further event; None when there is no such time."""
        now = self._clock()
        moments = (moment for at, name, _ in self._next() for moment in self._sources[name].changes(at))
        return min((moment for moment in moments if moment > now), default=None)

    def timers(self) -> Iterator[tuple[str, SetTimer]]:
        """Every timer that is set, with its process."""
        for name, processor in self._processes.items():
            for partition, timers in processor.timers.items():
                for key, timer, due in timers.items():
                    yield name, SetTimer(partition, key, timer, due)

    def time(self, name: str, partition: int) -> datetime | None:
        """The log time for a partition of a process; None while it is unknown."""
        end, time = len(self._log.of(names.commands(name))[partition]), self._processes[name].times[partition]
        time.tell(partition, self._sources[name].watermark(self._clock(), {partition: end}))
        return time.now(end)

    def give(self, name: str, out: Outgoing) -> None:
        """Writes an input of a process."""
        self._waiting.append(self._write(names.commands(name), out))

    def _routed(self) -> bool:
        """Routes what was written; a router stays before an event that it cannot route, and says so at each later one.

        The others route all the same.
        """
        failed: ContractError | None = None
        for router, reader, name in self._routes:
            for record in reader.poll(1000, 0.0):
                if name in self._unroutable:
                    failed = self._unroutable[name]
                    break
                try:
                    routed = router.route(record)
                except Unusable as error:
                    self._write(names.dead(name), error.letter)
                    _LOGGER.warning("%s: dead-lettered by its router: %s", name, error)
                    continue
                except ContractError as error:
                    self._unroutable[name] = failed = error
                    break
                self._follow(record)
                if routed is not None:
                    self._waiting.append(self._write(names.commands(name), routed))
        if failed is not None:
            raise failed
        return bool(self._waiting)

    def _next(self) -> list[tuple[datetime, str, int]]:
        """The earliest timer of each partition that has one: its time, process and partition."""
        found = [
            (timers.next(), processor.name, partition)
            for processor in self._processes.values()
            if processor.name not in self._stopped
            for partition, timers in processor.timers.items()
        ]
        return sorted((at, name, partition) for at, name, partition in found if at is not None)

    def _fired(self) -> bool:
        """Writes the input of the earliest timer that is due, if one is."""
        for _, name, partition in self._next():
            processor, topic = self._processes[name], names.commands(name)
            now = self.time(name, partition)
            if now is not None and (due := processor.due_at(partition, now, 1)):
                self._waiting.extend([self._write(topic, out) for out in due])
                processor.commit(Batch(sent={topic: due}), {})
                return True
        return False

    def _write(self, topic: str, out: Outgoing) -> RawRecord:
        at = int(self._clock().timestamp() * 1000)
        return self._log.append(topic, out.partition, out.key, out.value, out.headers, time=at)

    def _home(self, key: bytes) -> int:
        return partition_of(key, self._app.partitions)

    def _count(self, topic: str) -> int:
        return len(self._log.topics.get(topic, ()))

    def _command_processor(self, decider: Any) -> CommandProcessor:
        return CommandProcessor(
            self._app.name,
            decider,
            partition_of=self._home,
            partitions=self._count,
            senders=self._app.senders_to(decider.name),
            end=lambda topic, partition: len(self._log.topics[topic][partition]),
        )

    def _process_processor(self, process: Process[Any, Any, Any]) -> ProcessManagerProcessor:
        return ProcessManagerProcessor(
            self._app.name, process, partition_of=self._home, partitions=self._count, lateness=self._app.lateness
        )

    def _assigned(self, processor: L) -> L:
        for partition in range(self._app.partitions):
            processor.hold(partition, {}, end=0)
        return processor


def _check_decided(app: App, process: Process[Any, Any, Any]) -> None:
    decided = {decider.name for decider in app.deciders}
    for command in process.sends:
        category = command.__leftfold__.category
        if category not in decided:
            raise ConfigurationError(
                f"process {process.name} sends {command.__name__}, which no decider in this world decides; test it "
                f"with an App that has the decider of {category}, too: App('test', deciders=[...], processes=[...])"
            )
