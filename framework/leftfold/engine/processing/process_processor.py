"""The processor of a process manager: inputs in, one batch of commands and state out, without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import nullcontext
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Any

from leftfold.engine.processing.command_wire import record_headers
from leftfold.engine.processing.log_time import LogTime, Watermark
from leftfold.engine.processing.partition_processor import OVERHEAD, Partitioner, PartitionProcessor, Partitions
from leftfold.engine.processing.process_instance import Due, Instance, InstanceCodec
from leftfold.engine.processing.process_reactor import Failed, InputSkipped, Reactor, Request
from leftfold.engine.processing.process_wire import Input, due_record, read_input
from leftfold.errors import ContractError, InfrastructureError, LeftfoldError
from leftfold.model import keys as names
from leftfold.model.keys import partition_of as murmur
from leftfold.model.process import Process
from leftfold.model.state_codec import time_at
from leftfold.ports.instruments import REACT, Span
from leftfold.ports.outgoing import Batch, Outgoing
from leftfold.ports.protocols import RawRecord

__all__ = ["ProcessManagerProcessor"]

_STALE = 1000


class Timers:
    """The timers of one partition's instances, by due time; one that has fired is not returned again."""

    def __init__(self) -> None:
        self._set: dict[str, dict[str, Due]] = {}
        self._heap: list[tuple[datetime, str, str, str]] = []
        self._fired: set[tuple[str, str, str]] = set()
        self._count = 0

    def set(self, key: str, timers: Mapping[str, Due]) -> None:
        """Replaces the timers of an instance."""
        before = self._set.pop(key, {})
        self._count += len(timers) - len(before)
        if timers:
            self._set[key] = dict(timers)
        for name, timer in before.items():
            if timers.get(name) != timer:
                self._fired.discard((key, name, timer.by))
        for name, timer in timers.items():
            if before.get(name) != timer:
                heappush(self._heap, (datetime.fromisoformat(timer.at), key, name, timer.by))
        if len(self._heap) > 2 * self._count + _STALE:
            self._heap = [entry for entry in self._heap if self._is_set(*entry[1:])]
            heapify(self._heap)

    def due(self, now: datetime, most: int) -> list[tuple[str, str, Due]]:
        """Up to `most` timers, by key and name, that are due and have not fired, the earliest first."""
        found: list[tuple[str, str, Due]] = []
        again: list[tuple[datetime, str, str, str]] = []
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            entry = heappop(self._heap)
            _, key, name, by = entry
            if self._is_set(key, name, by):
                found.append((key, name, self._set[key][name]))
                again.append(entry)
        for entry in again:
            heappush(self._heap, entry)
        return found

    def fired(self, key: str, name: str, by: str) -> None:
        """Records that the log holds the due record of this timer, as the input `by` set it."""
        if self._is_set(key, name, by):
            self._fired.add((key, name, by))

    def next(self) -> datetime | None:
        """When the earliest timer that has not fired is due; None when there is none."""
        while self._heap and not self._is_set(*self._heap[0][1:]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_set(self, key: str, name: str, by: str) -> bool:
        timer = self._set.get(key, {}).get(name)
        return timer is not None and timer.by == by and (key, name, by) not in self._fired

    def items(self) -> Iterator[tuple[str, str, Due]]:
        """Every timer that is set, by key and name."""
        for key, timers in self._set.items():
            for name, timer in timers.items():
                yield key, name, timer


class ProcessManagerProcessor(PartitionProcessor[Input]):
    """Reacts to batches of a process's inputs over the partitions it holds, and fires due timers.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of, partitions, max_bytes: see PartitionProcessor.
        lateness: see LogTime.
    """

    def __init__(
        self,
        app: str,
        process: Process[Any, Any, Any],
        *,
        partition_of: Partitioner,
        partitions: Partitions,
        max_bytes: int = 1_000_000,
        lateness: timedelta | None = None,
    ) -> None:
        codec = InstanceCodec(process.state, process.initial_state)
        super().__init__(
            app, process.name, codec, partition_of=partition_of, partitions=partitions, max_bytes=max_bytes
        )
        self._app, self._reactor = app, Reactor(process, max_bytes - OVERHEAD)
        self._topic = names.commands(process.name)
        self._sources = [names.events(category) for category in process.categories]
        specs = [command.__leftfold__ for command in process.sends]
        self._targets = {spec.type: names.commands(spec.category) for spec in specs}
        self._lateness = lateness
        self.timers: dict[int, Timers] = {}
        self.times: dict[int, LogTime] = {}

    def hold(self, partition: int, store: MutableMapping[str, bytes], *, end: int) -> None:
        """Takes a restored partition and its timers."""
        super().hold(partition, store, end=end)
        counts = {topic: self._partitions(topic) for topic in self._sources}
        for topic, count in counts.items():
            if not count:
                raise InfrastructureError(f"process {self.name} listens to {topic}, which does not exist")
        for what, topic in self._targets.items():
            self._partitions_of(topic, what)
        sources = [f"{topic}/{p}" for topic, count in counts.items() for p in range(count)]
        self.times[partition] = LogTime(sources, self._lateness)
        timers = self.timers[partition] = Timers()
        for key, record in store.items():
            if InstanceCodec.has_timers(record):
                timers.set(key, InstanceCodec.timers(record))

    def drop(self, partition: int) -> None:
        """Drops a partition with its state and timers."""
        super().drop(partition)
        self.timers.pop(partition, None)
        self.times.pop(partition, None)

    def tell(self, watermark: Watermark) -> None:
        """Takes a watermark for all partitions."""
        for partition, time in self.times.items():
            time.tell(partition, watermark)

    def due(self, nexts: Mapping[int, int]) -> Batch:
        """The due records of timers by log time, to be written into the process's own topic."""
        batch = Batch()
        for partition, offset in nexts.items():
            time, first = self.times[partition], self.timers[partition].next()
            time.reach(offset)
            if first is None or first > time.clock:
                continue
            now = time.now(offset)
            if now is not None and (due := self.due_at(partition, now)):
                batch.sent.setdefault(self._topic, []).extend(due)
        return batch

    def due_at(self, partition: int, now: datetime, most: int = 1000) -> list[Outgoing]:
        """The due records of a partition's timers at a time, the earliest first."""
        return [
            due_record(self._app, self.name, key, name, timer, partition, at=now)
            for key, name, timer in self.timers[partition].due(now, most)
        ]

    def commit(self, batch: Batch, ends: Mapping[int, int]) -> None:
        """Takes over a committed batch; the timers that it fired do not fire again."""
        super().commit(batch, ends)
        for partition, instances in batch.streams.items():
            if partition in self.timers:
                for key, instance in instances.items():
                    self.timers[partition].set(key, instance.timers)
        for out in batch.sent.get(self._topic, ()):
            if out.partition in self.timers:
                due = json.loads(out.value or b"")
                self.timers[out.partition].fired((out.key or b"").decode(), due["name"], due["by"])

    def bury(self, record: RawRecord, reason: str, *, silent: bool = False) -> Batch:
        """A batch that dead-letters one record; a later fold of the inputs skips it, too."""
        batch = super().bury(record, reason, silent=silent)
        self.finish(batch)
        return batch

    def _bury(self, batch: Batch, record: RawRecord, error: LeftfoldError) -> None:
        """Dead-letters an input, and records it as seen in its instance, if its key can be read."""
        super()._bury(batch, record, error)
        try:
            given = self._read(record)
            instance = self._stream(batch, record.partition, given.key, 0.0)
        except (ContractError, InfrastructureError):
            return
        before, room = instance.copy(), self._room_beside(record.key)
        self._reactor.refuse(instance, given)
        if len(self.streams.encode(instance)) > room:
            batch.streams[record.partition][given.key] = before
            if len(self.streams.encode(before)) > room:
                # Its key is so large that no state fits beside it: only the dead letter records the input.
                return
        batch.changed.add((record.partition, given.key))

    def _answer(self, batch: Batch, record: RawRecord, version: int, events: int, error: dict[str, Any] | None) -> None:
        """Sends nothing: inputs are not answered."""

    def _read(self, record: RawRecord) -> Input:
        return read_input(record)

    def _take(
        self, batch: Batch, record: RawRecord, given: Input, stream: Instance[Any], now: float, careful: bool
    ) -> None:
        if given.origin is not None:
            at = datetime.fromisoformat(given.time.decode())
            routed = time_at(record.time) if record.time else at
            self.times[record.partition].saw(given.origin[0], at, routed, record.offset, given.origin[1])
        span = self._span(REACT, batch, record, given) if given.traceparent else None
        with span or nullcontext():
            self._react(batch, record, given, stream, careful, span)

    def _react(
        self, batch: Batch, record: RawRecord, given: Input, stream: Instance[Any], careful: bool, span: Span | None
    ) -> None:
        """Reacts to one input, and adds the effects to the batch."""
        spare = stream.copy() if careful else None
        outcome = self._reactor.take(stream, given)
        if spare is not None and (wrong := self._unfit(batch, record.partition, stream, self._room_beside(record.key))):
            batch.streams[record.partition][given.key] = spare
            outcome = Failed(wrong)
        if isinstance(outcome, InputSkipped) and outcome.why == "foreign":
            # A router sends what its own code listens to: skipped here, it would never reach the process.
            what = given.type.decode(errors="replace")
            outcome = Failed(
                ContractError(f"process {self.name} does not listen to {what}; a router of other code does")
            )
        if isinstance(outcome, InputSkipped):
            self._count(batch, outcome.why)
            return
        if isinstance(outcome, Failed):
            batch.fail(outcome.error)
            self._bury(batch, record, outcome.error)
            return
        batch.changed.add((record.partition, given.key))
        self._count(batch, "taken")
        if span and (context := span.traceparent.encode()):
            given = given._replace(traceparent=context)
        for index, request in enumerate(outcome.commands):
            self._send(batch, record, given, request, index)

    def _partitions_of(self, topic: str, what: str) -> int:
        """The partition count of the topic that a command is sent to."""
        if count := self._partitions(topic):
            return count
        raise InfrastructureError(
            f"process {self.name} sends {what}, but topic {topic} does not exist; start its service once, or create "
            f"it: leftfold topics ensure --app APP"
        )

    def _send(self, batch: Batch, record: RawRecord, given: Input, request: Request, index: int) -> None:
        topic, key = names.commands(request.category), request.key.encode()
        count = self._partitions_of(topic, request.sent.type)
        headers = record_headers(
            request.id,
            self._source[1],
            request.sent.type.encode(),
            key,
            given.time,
            given.correlation,
            given.id.encode(),
            ("origin", f"{record.address.source}/{index}".encode()),
            ("reply_to", names.commands(self.name).encode()),
            ("reply_key", record.key or b""),
            traceparent=given.traceparent,
            principal=given.principal,
        )
        self._count(batch, "sent")
        batch.sent.setdefault(topic, []).append(Outgoing(murmur(key, count), key, request.sent.value.encode(), headers))
