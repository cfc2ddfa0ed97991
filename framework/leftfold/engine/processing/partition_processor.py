"""The base of command and process processors: the streams of a partition, and one batch of writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, TypeAlias, TypeVar

from leftfold.engine.processing.command_wire import CONTENT_TYPE, Received, command_digest, nack
from leftfold.engine.processing.log_time import Watermark
from leftfold.engine.processing.process_instance import InstanceCodec
from leftfold.engine.processing.process_wire import BARRIER, Input, answer_record
from leftfold.engine.processing.stream_state import KEEP, MARK, StreamCodec
from leftfold.errors import ContractError, DecisionFailed, InfrastructureError, LeftfoldError
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.instruments import MOST_TRACED, Operation, Span, by_principal, is_sampled
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Batch, Outgoing, Reply, dead_letter
from leftfold.ports.protocols import RawRecord
from leftfold.safety import shown

__all__ = ["STATE_HEADERS", "Clock", "PartitionProcessor", "Partitioner", "Partitions", "StateTooLarge"]


StateCodec: TypeAlias = StreamCodec[Any] | InstanceCodec[Any]


_RECENT = 2_000
"""How many streams of a partition stay decoded."""


class PartitionState:
    """The committed streams of one partition; `end` is the known end of its events."""

    def __init__(self, store: MutableMapping[str, bytes], codec: StateCodec, *, end: int) -> None:
        self.store, self.end = store, end
        self._codec = codec
        self._recent: dict[str, Any] = {}
        self._given: dict[str, float] = {}
        """When the newest answer was given, of streams with more than KEEP answers that do not stay decoded."""

    def copy_of(self, key: str, now: float) -> Any:
        """The committed stream as a copy that a batch may change; a new stream where there is none."""
        stream = self._recent.get(key)
        if stream is not None:
            return stream.copy()
        record = self.store.get(key)
        return self._codec.new() if record is None else self._codec.decode(record, self._given.get(key, now))

    def commit(self, streams: dict[str, Any], records: list[tuple[str, bytes]]) -> None:
        """Takes over the streams of a committed batch."""
        self.store.update(records)
        for key, stream in streams.items():
            self._recent.pop(key, None)
            self._recent[key] = stream
        while len(self._recent) > _RECENT:
            key = next(iter(self._recent))
            answered = getattr(self._recent.pop(key), "answered", {})  # an instance of a process has none
            if len(answered) > KEEP:
                self._given[key] = max(one.seen for one in answered.values())
            else:
                self._given.pop(key, None)


Partitioner = Callable[[bytes], int]
Partitions = Callable[[str], int]
Clock = Callable[[], float]
OVERHEAD = 2048
STATE_HEADERS = [CONTENT_TYPE]


class StateTooLarge(Exception):
    """A batch made a state record that cannot be written: it is too large, or its value cannot be encoded."""


G = TypeVar("G", bound=Received | Input)


class PartitionProcessor(ABC, Generic[G]):
    """Processes batches of records of one topic over the partitions it holds.

    Args:
        name: the category, or the process.
        partition_of: the partition a key belongs to; records elsewhere are dead-lettered.
        partitions: how many partitions another topic has, 0 = it does not exist.
        max_bytes: the limit of a record, headers included.
        clock: seconds since 1970; an answer counts as given then, though its command was appended long before.
    """

    def __init__(
        self,
        app: str,
        name: str,
        codec: StateCodec,
        *,
        partition_of: Partitioner,
        partitions: Partitions,
        max_bytes: int,
        clock: Clock = lambda: 0.0,
    ) -> None:
        self.name, self.streams = name, codec
        self.held: dict[int, PartitionState] = {}
        self._partition_of, self._partitions = partition_of, partitions
        self._room, self._clock, self._decided = max_bytes - OVERHEAD, clock, 0.0
        self._source = ("ce_source", f"/{app}/{name}".encode())

    def hold(self, partition: int, store: MutableMapping[str, bytes], *, end: int) -> None:
        """Takes a restored partition; `end` is the known end of its events."""
        self.held[partition] = PartitionState(store, self.streams, end=end)

    def drop(self, partition: int) -> None:
        """Drops a partition and its streams."""
        self.held.pop(partition, None)

    def process(self, records: Iterable[RawRecord]) -> Batch:
        """Processes the records in order; the committed state does not change until `commit`."""
        records = list(records)
        batch = Batch()
        try:
            self.extend(batch, records)
            self.finish(batch)
        except StateTooLarge:
            batch = Batch()
            self.extend(batch, records, careful=True)
            self.finish(batch)
        return batch

    def extend(self, batch: Batch, records: Iterable[RawRecord], *, careful: bool = False) -> None:
        """Adds more records to a batch; `careful` checks the state's size after each, and refuses what exceeds it."""
        self._decided = self._clock()
        for record in records:
            # The broker's time of the record: a worker that was paused must not forget answers sooner because of it.
            self._one(batch, record, record.time / 1000, careful)

    def finish(self, batch: Batch) -> None:
        """Adds the state records of the streams that the batch changed.

        Raises:
            StateTooLarge: one of them is too large to be written; take the same records again with `process`.
        """
        for partition, streams in batch.streams.items():
            for key in [key for key in streams if (partition, key) not in batch.changed]:
                del streams[key]
            for key, stream in streams.items():
                raw = key.encode()
                room = self._room_beside(raw)
                try:
                    value = self._fitted(batch, partition, stream, room)
                except Exception as error:  # a state of user code, made from whatever a client has sent
                    raise StateTooLarge(f"the state of {key[:80]!r} cannot be written down: {shown(error)}") from error
                if len(value) > room:
                    raise StateTooLarge(f"the state of {key[:80]!r} weighs {len(value)} bytes")
                batch.states.append(Outgoing(partition, raw, value, STATE_HEADERS))

    def bury(self, record: RawRecord, reason: str, *, silent: bool = False) -> Batch:
        """A batch that dead-letters one record without decoding it; `silent` answers no process."""
        batch = Batch()
        self._bury(batch, record, ContractError(reason))
        if silent:
            batch.sent.clear()
        return batch

    def withhold(self, topics: Iterable[str]) -> bool:
        """Sends no answers to these topics for a minute; returns whether that leaves something to be written."""
        return False

    def commit(self, batch: Batch, ends: Mapping[int, int]) -> None:
        """Takes over a committed batch; `ends` are the events' ends of partitions it wrote events to."""
        records: dict[int, list[tuple[str, bytes]]] = {}
        for state in batch.states:
            records.setdefault(state.partition, []).append(((state.key or b"").decode(), state.value or b""))
        for partition, streams in batch.streams.items():
            if partition in self.held:
                self.held[partition].commit(streams, records.get(partition, []))
        for partition, end in ends.items():
            if partition in self.held:
                self.held[partition].end = end

    def tell(self, watermark: Watermark) -> None:
        """Takes a watermark; a processor without timers ignores it."""

    def due(self, nexts: Mapping[int, int]) -> Batch:
        """The records to write because timers are due, given the next record to take of each partition."""
        return Batch()

    @abstractmethod
    def _read(self, record: RawRecord) -> G:
        """The content of a record. Raises ContractError when this processor cannot take it."""

    @abstractmethod
    def _take(self, batch: Batch, record: RawRecord, given: G, stream: Any, now: float, careful: bool) -> None:
        """Processes what was read, and adds its effects to the batch."""

    def _one(self, batch: Batch, record: RawRecord, now: float, careful: bool) -> None:
        if record.key == MARK and header(record.headers, "ce_type") == BARRIER:
            return
        try:
            given = self._read(record)
        except ContractError as error:
            self._bury(batch, record, error)
            return
        stream = self._stream(batch, record.partition, given.key, max(now, self._decided))
        if not stream.version and (home := self._partition_of(record.key or b"")) != record.partition:
            misplaced = f"key {given.key!r} belongs to partition {home}, not {record.partition}"
            self._bury(batch, record, ContractError(misplaced))
            return
        self._take(batch, record, given, stream, now, careful)

    def _unfit(self, batch: Batch, partition: int, stream: Any, room: int) -> LeftfoldError | None:
        """Why the record of a stream cannot be written; None = it can."""
        try:
            if len(self._fitted(batch, partition, stream, room)) <= room:
                return None
        except Exception as error:  # noqa: BLE001  # a state of user code, made from whatever a client has sent
            failed = DecisionFailed(f"{self.name}: the state cannot be written down: {shown(error)}")
            failed.__cause__ = error
            return failed
        return ContractError(f"the state would be too large to be written; at most {room} bytes fit")

    def _fitted(self, batch: Batch, partition: int, stream: Any, room: int) -> bytes:
        """The record of a stream; remembered answers are dropped, oldest first, when it is larger than `room`."""
        value = self.streams.encode(stream)
        if len(value) > room and (dropped := stream.shed(len(value) - room)):
            value = self.streams.encode(stream)
            batch.drop_answers(partition, dropped)
        return value

    def _room_beside(self, key: bytes | None) -> int:
        """The limit of a value: the key is in the record and again in its headers."""
        return self._room - 2 * len(key or b"")

    def _stream(self, batch: Batch, partition: int, key: str, now: float) -> Any:
        """The stream with the changes of this batch so far.

        Raises:
            InfrastructureError: its state cannot be read; the partition must not be served, so this ends the processor.
        """
        streams = batch.streams.get(partition)
        if streams is None:
            streams = batch.streams[partition] = {}
        stream = streams.get(key)
        if stream is None:
            try:
                stream = streams[key] = self.held[partition].copy_of(key, now)
            except ContractError as error:
                raise InfrastructureError(
                    f"{self.name}: the stored state of {key!r} cannot be read: {error}; run the code that wrote it, "
                    f"raise version= of {self.name}, or have states folded again: leftfold state rebuild {self.name}"
                ) from error
        return stream

    def _span(self, operation: Operation, batch: Batch, record: RawRecord, given: Any) -> Span | None:
        """The span of one record, below the span that sent it; None = its trace is not recorded, or the batch is large.

        It ends with the decision. The span of the batch, to which it belongs as well, lasts until the commit.
        """
        if batch.traced >= MOST_TRACED or not is_sampled(given.traceparent):
            return None
        batch.traced += 1
        about = {
            "messaging.message.id": given.id,
            "messaging.message.conversation_id": given.correlation.decode(),
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
            **by_principal(given.principal.decode()),
        }
        return operation.span(record.topic, about, parent=given.traceparent)

    def _count(self, batch: Batch, what: str, count: int = 1) -> None:
        batch.counts[what] = batch.counts.get(what, 0) + count

    def _answer(self, batch: Batch, record: RawRecord, version: int, events: int, error: dict[str, Any] | None) -> None:
        """Answers the sender: a client after the commit, a process inside the transaction."""
        to, key = header(record.headers, "reply_to"), header(record.headers, "reply_key")
        if not to:
            return
        if not key:
            id_ = header(record.headers, "ce_id")
            expected = header(record.headers, "expected_version") or None
            digest = b"" if record.value is None else command_digest(record.value, expected).encode()
            batch.replies.append(Reply(to, id_, record.partition, version, events, error, digest))
            return
        process = self._sender(to)
        count = self._partitions(names.commands(process)) if process else 0
        if not count:
            self._count(batch, "replies_unanswerable")
            return
        body = {"version": version, "events": events} if error is None else error
        answer = answer_record(record, key, partition_of(key, count), self._source[1], body, process)
        batch.sent.setdefault(names.commands(process), []).append(answer)

    def _sender(self, to: bytes) -> str:
        """The process to answer in this topic; '' = this processor sends no answer there."""
        return ""

    def _bury(self, batch: Batch, record: RawRecord, error: LeftfoldError) -> None:
        """Dead-letters a record with its original bytes, by reference when it is too large to be copied."""
        self._count(batch, "dead")
        batch.dead.append(dead_letter(record, str(error), record.partition, self._room))
        if header(record.headers, "ce_id"):
            self._answer(batch, record, 0, 0, nack(error))
