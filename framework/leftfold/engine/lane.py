"""The deciding half of a worker: commands in, one batch of writes out. It knows no broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leftfold.codec import MessageCodec, event_id, header
from leftfold.decider import Decider
from leftfold.engine.batch import Batch, HeaderList, Outgoing, Reply
from leftfold.engine.deciding import Accepted, Duplicate, Outcome, Refused, decide
from leftfold.engine.held import Held
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION, Received, read_command
from leftfold.engine.reply import nack
from leftfold.engine.stream import Stream, StreamCodec
from leftfold.errors import ContractError, LeftfoldError
from leftfold.ports import RawRecord, StateStore

__all__ = ["STATE_HEADERS", "HeavyState", "Lane"]

Partitioner = Callable[[bytes], int]
OVERHEAD = 2048
STATE_HEADERS = [CONTENT_TYPE]


class HeavyState(Exception):
    """A batch made a state record that is too heavy to be written."""


class Lane:
    """Decides batches of one category's commands over the partitions it holds.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of: the partition a key belongs to; commands elsewhere are dead-lettered.
        clock: seconds that only grow, for the window of answers.
        max_bytes: what a record may weigh at most, headers included.
    """

    def __init__(
        self,
        app: str,
        decider: Decider[Any, Any, Any],
        *,
        partition_of: Partitioner,
        clock: Callable[[], float],
        max_bytes: int = 1_000_000,
    ) -> None:
        self.decider, self.streams = decider, StreamCodec(decider.state)
        self.commands: MessageCodec[Any] = MessageCodec(decider.commands)
        self.events: MessageCodec[Any] = MessageCodec(decider.events)
        self.held: dict[int, Held] = {}
        self._partition_of, self._clock, self._room = partition_of, clock, max_bytes - OVERHEAD
        self._source = ("ce_source", f"/{app}/{decider.name}".encode())

    def hold(self, partition: int, store: StateStore, *, end: int) -> None:
        """Takes a restored partition; `end` is the events end known."""
        self.held[partition] = Held(store, self.streams, self.decider.initial_state, end=end)

    def drop(self, partition: int) -> None:
        """Lets go of a partition and everything known of it."""
        self.held.pop(partition, None)

    def process(self, records: Iterable[RawRecord]) -> Batch:
        """Decides the records in order; the committed streams stay as they are until `commit`."""
        records = list(records)
        batch = Batch()
        try:
            self.extend(batch, records)
            self.finish(batch)
        except HeavyState:
            batch = Batch()
            self.extend(batch, records, careful=True)
            self.finish(batch)
        return batch

    def extend(self, batch: Batch, records: Iterable[RawRecord], *, careful: bool = False) -> None:
        """Decides more records into a batch; `careful` weighs the state after each, and refuses what is too much."""
        now = self._clock()
        for record in records:
            self._one(batch, record, now, careful)

    def finish(self, batch: Batch) -> None:
        """Adds the state records of the streams that the batch changed.

        Raises:
            HeavyState: one of them is too heavy to be written; decide the same records again with `process`.
        """
        for partition, streams in batch.streams.items():
            for key in [key for key in streams if (partition, key) not in batch.changed]:
                del streams[key]
            for key, stream in streams.items():
                raw, value = key.encode(), self.streams.encode(stream)
                if len(value) > self._room_beside(raw):
                    raise HeavyState(f"the state of {key[:80]!r} weighs {len(value)} bytes")
                batch.states.append(Outgoing(partition, raw, value, STATE_HEADERS))

    def bury(self, record: RawRecord, reason: str) -> Batch:
        """A batch that dead-letters one record without looking into it."""
        batch = Batch()
        self._bury(batch, record, ContractError(reason))
        return batch

    def commit(self, batch: Batch, ends: Mapping[int, int]) -> None:
        """Takes over a batch that is committed; `ends` are the events ends of partitions it wrote events to."""
        records: dict[int, list[tuple[str, bytes]]] = {}
        for state in batch.states:
            records.setdefault(state.partition, []).append(((state.key or b"").decode(), state.value or b""))
        for partition, streams in batch.streams.items():
            if partition in self.held:
                self.held[partition].commit(streams, records.get(partition, []))
        for partition, end in ends.items():
            if partition in self.held:
                self.held[partition].end = end

    def _one(self, batch: Batch, record: RawRecord, now: float, careful: bool) -> None:
        try:
            received = read_command(self.commands, record)
        except ContractError as error:
            self._bury(batch, record, error)
            return
        stream = self._stream(batch, record, received, now)
        if not stream.version and (home := self._partition_of(record.key or b"")) != record.partition:
            misplaced = f"key {received.key!r} belongs to partition {home}, not {record.partition}"
            self._bury(batch, record, ContractError(misplaced))
            return
        spare = stream.copy() if careful else None
        room = self._room_beside(record.key)
        outcome = decide(self.decider, self.events, stream, received, now, room)
        if spare is not None and (size := len(self.streams.encode(stream))) > room:
            batch.streams[record.partition][received.key] = stream = spare
            outcome = Refused(ContractError(f"the state would weigh {size} bytes; at most {room} fit"), False)
        self._write(batch, record, received, stream, outcome)

    def _room_beside(self, key: bytes | None) -> int:
        """What a value may weigh: the key stands in the record and again in its headers."""
        return self._room - 2 * len(key or b"")

    def _stream(self, batch: Batch, record: RawRecord, received: Received, now: float) -> Stream[Any]:
        """The stream as this batch has it so far.

        Raises:
            ContractError: its state cannot be read; the partition must not be served, so this ends the lane.
        """
        partition, key = record.partition, received.key
        streams = batch.streams.get(partition)
        if streams is None:
            streams = batch.streams[partition] = {}
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = self.held[partition].copy_of(key, now)
        return stream

    def _write(
        self, batch: Batch, record: RawRecord, received: Received, stream: Stream[Any], outcome: Outcome
    ) -> None:
        if isinstance(outcome, Accepted):
            events, first, dropped = outcome
            for index, (type_, value) in enumerate(events):
                headers = self._headers(record, received, type_, first + index, index + 1, len(events))
                batch.events.append(Outgoing(record.partition, record.key, value, headers))
            batch.changed.add((record.partition, received.key))
            self._count(batch, "accepted", dropped)
            self._reply(batch, record, received, stream.version, len(events), None)
        elif isinstance(outcome, Duplicate):
            self._count(batch, "duplicates")
            self._reply(batch, record, received, *outcome)
        elif isinstance(outcome.error, ContractError):
            self._bury(batch, record, outcome.error)
        else:
            if outcome.remembered:
                batch.changed.add((record.partition, received.key))
            self._count(batch, "rejected" if outcome.remembered else "failed", outcome.dropped)
            self._reply(batch, record, received, stream.version, 0, nack(outcome.error))

    def _headers(self, record: RawRecord, received: Received, type_: bytes, version: int, k: int, n: int) -> HeaderList:
        headers = [
            SPEC_VERSION,
            ("ce_id", event_id(self.decider.name, received.key, received.id, k - 1).encode()),
            self._source,
            ("ce_type", type_),
            ("ce_subject", record.key or b""),
            ("ce_time", received.time),
            ("ce_sequence", b"%d" % version),
            ("ce_decision", b"%d/%d" % (k, n)),
            ("ce_correlationid", received.correlation),
            ("ce_causationid", received.id.encode()),
            CONTENT_TYPE,
        ]
        if received.traceparent:
            headers.append(("traceparent", received.traceparent))
        return headers

    def _count(self, batch: Batch, what: str, dropped: int = 0) -> None:
        batch.counts[what] = batch.counts.get(what, 0) + 1
        if dropped:
            batch.counts["answers_dropped"] = batch.counts.get("answers_dropped", 0) + dropped

    def _reply(
        self,
        batch: Batch,
        record: RawRecord,
        received: Received,
        version: int,
        events: int,
        error: dict[str, Any] | None,
    ) -> None:
        if received.reply_to:
            batch.replies.append(
                Reply(received.reply_to, received.id.encode(), record.partition, version, events, error)
            )

    def _bury(self, batch: Batch, record: RawRecord, error: LeftfoldError) -> None:
        """Dead-letters a record with its original bytes, by reference when it is too heavy to be copied."""
        self._count(batch, "dead")
        source = f"{record.topic}/{record.partition}/{record.offset}".encode()
        reason = str(error)[:2000].encode()
        headers = [*record.headers, ("dead_reason", reason), ("dead_source", source)]
        weight = len(record.key or b"") + len(record.value or b"") + sum(len(k) + len(v or b"") for k, v in headers)
        if weight > self._room:
            headers = [("dead_reason", reason), ("dead_source", source), ("dead_reference", b"true")]
        value = record.value if weight <= self._room else None
        batch.dead.append(Outgoing(record.partition, record.key, value, headers))
        id_, to = header(record.headers, "ce_id"), header(record.headers, "reply_to")
        if id_ and to:
            batch.replies.append(Reply(to, id_, record.partition, 0, 0, nack(error)))
