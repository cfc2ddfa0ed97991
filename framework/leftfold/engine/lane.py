"""The deciding half of a worker: commands in, one batch of writes out. It knows no broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leftfold.codec import MessageCodec, event_id, header
from leftfold.decider import Decider
from leftfold.engine.batch import Batch, HeaderList, Outgoing, Reply
from leftfold.engine.deciding import Accepted, Duplicate, Refused, decide
from leftfold.engine.held import Held
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION, Received, read_command
from leftfold.engine.reply import nack
from leftfold.engine.stream import Stream, StreamCodec
from leftfold.errors import ContractError, LeftfoldError
from leftfold.ports import RawRecord, StateStore

__all__ = ["Lane"]

Partitioner = Callable[[bytes], int]
OVERHEAD = 2048
STATE_HEADERS = [CONTENT_TYPE]


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
        batch = self._decided(records, careful=False)
        if any(len(state.value or b"") > self._room for state in batch.states):
            batch = self._decided(records, careful=True)
        return batch

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

    def _decided(self, records: list[RawRecord], *, careful: bool) -> Batch:
        batch = Batch()
        now = self._clock()
        for record in records:
            self._one(batch, record, now, careful)
        for partition, streams in batch.streams.items():
            for key, stream in streams.items():
                batch.states.append(Outgoing(partition, key.encode(), self.streams.encode(stream), STATE_HEADERS))
        return batch

    def _one(self, batch: Batch, record: RawRecord, now: float, careful: bool) -> None:
        partition = record.partition
        try:
            received = read_command(self.commands, record)
            home = self._partition_of(record.key or b"")
            if home != partition:
                raise ContractError(f"key {received.key!r} belongs to partition {home}, not {partition}")
        except ContractError as error:
            self._bury(batch, record, error)
            return
        streams = batch.streams.get(partition, {})
        before = streams.get(received.key)
        stream = before if before is not None else self.held[partition].copy_of(received.key, now)
        spare = stream.copy() if careful else None
        outcome = decide(self.decider, self.events, stream, received, now, self._room)
        if spare is not None and (size := len(self.streams.encode(stream))) > self._room:
            stream = spare
            outcome = Refused(ContractError(f"the state would weigh {size} bytes; at most {self._room} fit"), False)
        changed = isinstance(outcome, Accepted) or (isinstance(outcome, Refused) and outcome.remembered)
        if changed or before is not None:
            batch.streams.setdefault(partition, {})[received.key] = stream
        self._write(batch, record, received, stream, outcome)

    def _write(
        self, batch: Batch, record: RawRecord, received: Received, stream: Stream[Any], outcome: Any
    ) -> None:
        match outcome:
            case Accepted(events=events, first=first, dropped=dropped):
                for index, (type_, value) in enumerate(events):
                    headers = self._headers(received, type_, first + index, index + 1, len(events))
                    batch.events.append(Outgoing(record.partition, record.key, value, headers))
                batch.counts["accepted"] += 1
                batch.counts["answers_dropped"] += dropped
                self._reply(batch, record, received.id, stream.version, len(events), None)
            case Duplicate(version=version, events=count, error=fields):
                batch.counts["duplicates"] += 1
                self._reply(batch, record, received.id, version, count, fields)
            case Refused(error=ContractError() as error):
                self._bury(batch, record, error)
            case Refused(error=error, dropped=dropped):
                batch.counts[type(error).__name__ if not outcome.remembered else "rejected"] += 1
                batch.counts["answers_dropped"] += dropped
                self._reply(batch, record, received.id, stream.version, 0, nack(error))

    def _headers(self, received: Received, type_: bytes, version: int, k: int, n: int) -> HeaderList:
        id_ = event_id(self.decider.name, received.key, received.id, k - 1).encode()
        headers = [
            SPEC_VERSION,
            ("ce_id", id_),
            self._source,
            ("ce_type", type_),
            ("ce_subject", received.key.encode()),
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

    def _reply(
        self, batch: Batch, record: RawRecord, id_: str, version: int, events: int, error: dict[str, Any] | None
    ) -> None:
        to = header(record.headers, "reply_to")
        if to:
            batch.replies.append(Reply(to, id_.encode(), record.partition, version, events, error))

    def _bury(self, batch: Batch, record: RawRecord, error: LeftfoldError) -> None:
        """Dead-letters a record with its original bytes, by reference when it is too heavy to be copied."""
        batch.counts["dead"] += 1
        source = f"{record.topic}/{record.partition}/{record.offset}".encode()
        reason = str(error)[:2000].encode()
        headers = [*record.headers, ("dead_reason", reason), ("dead_source", source)]
        weight = len(record.value or b"") + sum(len(k) + len(v or b"") for k, v in headers)
        if weight > self._room:
            headers = [("dead_reason", reason), ("dead_source", source), ("dead_reference", b"true")]
        value = record.value if weight <= self._room else None
        batch.dead.append(Outgoing(record.partition, record.key, value, headers))
        id_ = header(record.headers, "ce_id").decode(errors="replace")
        if id_:
            self._reply(batch, record, id_, 0, 0, nack(error))
