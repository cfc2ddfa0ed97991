"""The deciding half of a worker: commands in, one batch of writes out. It knows no broker."""

from __future__ import annotations

from typing import Any

from leftfold.codec import MessageCodec, event_id
from leftfold.decider import Decider
from leftfold.engine.batch import Batch, HeaderList, Outgoing, Reply
from leftfold.engine.batch_lane import BatchLane, Clock, Partitioner, Partitions
from leftfold.engine.deciding import Accepted, Duplicate, Outcome, Refused, decide
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION, Received, read_command
from leftfold.engine.reply import nack
from leftfold.engine.stream import Stream, StreamCodec
from leftfold.errors import ContractError, OutcomeUnknown
from leftfold.ports import RawRecord

__all__ = ["Lane"]


class Lane(BatchLane[Received]):
    """Decides batches of one category's commands over the partitions it holds.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of, partitions, max_bytes, clock: see BatchLane.
    """

    def __init__(
        self,
        app: str,
        decider: Decider[Any, Any, Any],
        *,
        partition_of: Partitioner,
        partitions: Partitions = lambda topic: 0,
        max_bytes: int = 1_000_000,
        clock: Clock = lambda: 0.0,
    ) -> None:
        super().__init__(
            app,
            decider.name,
            StreamCodec(decider.state, decider.initial_state),
            partition_of=partition_of,
            partitions=partitions,
            max_bytes=max_bytes,
            clock=clock,
        )
        self.decider = decider
        self.commands: MessageCodec[Any] = MessageCodec(decider.commands)
        self.events: MessageCodec[Any] = MessageCodec(decider.events)

    def _read(self, record: RawRecord) -> Received:
        return read_command(self.commands, record)

    def _take(
        self, batch: Batch, record: RawRecord, given: Received, stream: Stream[Any], now: float, careful: bool
    ) -> None:
        spare = stream.copy() if careful else None
        room = self._room_beside(record.key)
        outcome = decide(self.decider, self.events, stream, given, now, room, self._decided)
        if spare is not None and (size := len(self._fitted(batch, record.partition, stream, room))) > room:
            batch.streams[record.partition][given.key] = stream = spare
            outcome = Refused(ContractError(f"the state would weigh {size} bytes; at most {room} fit"), False)
        self._write(batch, record, given, stream, outcome)

    def _write(
        self, batch: Batch, record: RawRecord, received: Received, stream: Stream[Any], outcome: Outcome
    ) -> None:
        if isinstance(outcome, Accepted):
            events, first, dropped = outcome
            for index, (type_, value) in enumerate(events):
                headers = self._headers(record, received, type_, first + index, index + 1, len(events))
                batch.events.append(Outgoing(record.partition, record.key, value, headers))
            batch.changed.add((record.partition, received.key))
            self._count(batch, "accepted")
            batch.drop_answers(record.partition, dropped)
            self._reply(batch, record, received, stream.version, len(events), None)
        elif isinstance(outcome, Duplicate):
            self._count(batch, "duplicates")
            self._reply(batch, record, received, *outcome)
        elif isinstance(outcome.error, ContractError):
            self._bury(batch, record, outcome.error)
        else:
            if outcome.remembered:
                batch.changed.add((record.partition, received.key))
            late = isinstance(outcome.error, OutcomeUnknown)
            self._count(batch, "rejected" if outcome.remembered else "late" if late else "failed")
            batch.drop_answers(record.partition, outcome.dropped)
            if not outcome.remembered and not late:
                batch.fail(outcome.error)
            self._reply(batch, record, received, stream.version, 0, nack(outcome.error))

    def _headers(self, record: RawRecord, received: Received, type_: bytes, version: int, k: int, n: int) -> HeaderList:
        headers = [
            SPEC_VERSION,
            ("ce_id", event_id(self.name, received.key, received.id, k - 1).encode()),
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

    def _reply(
        self,
        batch: Batch,
        record: RawRecord,
        received: Received,
        version: int,
        events: int,
        error: dict[str, Any] | None,
    ) -> None:
        if received.reply_key:
            self._answer(batch, record, version, events, error)
        elif received.reply_to:
            batch.replies.append(
                Reply(received.reply_to, received.id.encode(), record.partition, version, events, error)
            )
