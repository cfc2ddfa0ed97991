"""The deciding half of a worker: commands in, one batch of writes out. It knows no broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from leftfold import names
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

__all__ = ["End", "Lane"]

End: TypeAlias = Callable[[str, int], int]
WITHHELD = 60.0


class Lane(BatchLane[Received]):
    """Decides batches of one category's commands over the partitions it holds.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of, partitions, max_bytes, clock: see BatchLane.
        senders: the processes whose commands are taken; others' are dead-lettered, and nobody else is answered.
        end: where a partition of a topic ends now, records that are not committed included.
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
        senders: Iterable[str] = (),
        end: End = lambda topic, partition: 0,
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
        self._senders = {names.commands(sender).encode(): sender for sender in senders}
        self._withheld: dict[bytes, float] = {}
        self._end, self._ends, self._asked = end, dict[str, int](), set[str]()

    def extend(self, batch: Batch, records: Iterable[RawRecord], *, careful: bool = False) -> None:
        """Takes more records into a batch; see BatchLane."""
        self._asked.clear()
        super().extend(batch, records, careful=careful)

    def _read(self, record: RawRecord) -> Received:
        received = read_command(self.commands, record)
        if received.reply_key or received.origin is not None:
            self._check_sender(received)
        return received

    def withhold(self, topics: Iterable[str]) -> bool:
        """Answers nobody there for a minute, since this App may not write there; returns whether it did."""
        withheld = dict.fromkeys((topic.encode() for topic in topics), self._clock() + WITHHELD)
        self._withheld |= withheld
        return bool(withheld)

    def _sender(self, to: bytes) -> str:
        return "" if self._clock() < self._withheld.get(to, 0.0) else self._senders.get(to, "")

    def _check_sender(self, received: Received) -> None:
        """Checks that a command of a process comes from one that sends here, and from an input that is there.

        Raises:
            ContractError: it does not. A forged origin would pass for one that was seen, and silence a true command.
        """
        to = received.reply_to.decode(errors="replace")
        if received.reply_to not in self._senders:
            raise ContractError(
                f"it is to be answered to {to!r}, no process that sends to {self.name}; if one does, say so in its "
                f"App(..., senders=[...]), and send it again"
            )
        if received.origin is None:
            return
        source, offset, _ = received.origin
        topic, _, partition = source.rpartition("/")
        if topic != to or int(partition) >= self._partitions(topic) or not self._reaches(source, offset):
            raise ContractError(f"its origin {source}/{offset} is no input of {to!r}")

    def _reaches(self, source: str, offset: int) -> bool:
        """Whether a partition has come to an offset. It is asked once for all that was fetched before."""
        if offset >= self._ends.get(source, 0) and source not in self._asked:
            topic, _, partition = source.rpartition("/")
            self._asked.add(source)
            self._ends[source] = self._end(topic, int(partition))
        return offset < self._ends.get(source, 0)

    def _take(
        self, batch: Batch, record: RawRecord, given: Received, stream: Stream[Any], now: float, careful: bool
    ) -> None:
        spare = stream.copy() if careful else None
        room = self._room_beside(record.key)
        outcome = decide(self.decider, self.events, stream, given, now, room, self._decided)
        if spare is not None and (wrong := self._unfit(batch, record.partition, stream, room)):
            batch.streams[record.partition][given.key] = stream = spare
            outcome = Refused(wrong, False)
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
