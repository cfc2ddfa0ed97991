"""Ends open transactions of dead workers as their coordinator decided, so that readers can continue."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import MARK, SETTLED, ChangelogCheckpoint
from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import UNREACHABLE, code_of, kafka_error, translated
from leftfold.kafka.records import KafkaMessage
from leftfold.kafka.worker.poison_pills import new_token
from leftfold.ports.protocols import PartitionId

__all__ = ["Hanging", "TransactionOutcome", "last_mark", "outcomes_of"]


_FIRST_STEP = 200
_MARK_SECONDS = 5.0


def mark_at(consumer: Consumer, place: TopicPartition, offset: int) -> bytes:
    """The first changelog checkpoint (`@`) at or after an offset; b"" if there is none."""
    with closing(_marks(consumer, place, offset, _end(consumer, place))) as marks:
        return next(marks, b"")


def last_mark(consumer: Consumer, place: TopicPartition) -> bytes:
    """The last changelog checkpoint (`@`) that the consumer sees; b"" if there is none.

    Raises:
        KafkaException: no answer in time, among others.
    """
    low, end = consumer.get_watermark_offsets(place, timeout=5.0)
    step = _FIRST_STEP
    while True:
        start = max(low, end - step)
        if found := list(_marks(consumer, place, start, end)):
            return found[-1]
        if start <= low:
            return b""
        step *= 10


def is_written_by(consumer: Consumer, place: TopicPartition, start: int, source: bytes) -> bool:
    """Whether any record at or after an offset has this `ce_source`."""
    with closing(_records(consumer, place, start, _end(consumer, place))) as records:
        return any(dict(message.headers() or ()).get("ce_source") == source for message in records)


def _end(consumer: Consumer, place: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(place, timeout=5.0)[1])


def _marks(consumer: Consumer, place: TopicPartition, start: int, end: int) -> Generator[bytes]:
    """The changelog checkpoints between two offsets."""
    with closing(_records(consumer, place, start, end)) as records:
        for message in records:
            if message.key() == MARK and (value := message.value()) and ChangelogCheckpoint.read(value) is not None:
                yield value


def _records(
    consumer: Consumer, place: TopicPartition, start: int, end: int, patience: float = _MARK_SECONDS
) -> Generator[KafkaMessage]:
    """The records between two offsets; `patience` is how many seconds each may take.

    The last offsets may be transaction markers, after which the consumer reports PARTITION_EOF.
    """
    here = TopicPartition(place.topic, place.partition, start)
    consumer.assign([here])
    try:
        while consumer.position([here])[0].offset < end and start < end:
            message = consumer.poll(patience)
            if message is None:
                late = f"{place.topic}[{place.partition}] returns no records"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, late))
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise KafkaException(error)
            if (message.offset() or 0) >= end:
                break
            yield message
    finally:
        consumer.unassign()


TOPIC = "__transaction_state"
_OUTCOME_SECONDS = 20.0
# Kafka's TransactionLogKey 0 is `version int16, id string`; TransactionLogValue 0 and 1 both begin with `version int16,
# producer id int64, epoch int16, timeout int32, status int8`, followed by its partitions.
_KEY_HEAD, _STATUS, _PARTITIONS = 4, 16, 17


class TransactionOutcome(IntEnum):
    """The outcome of a transaction: commit or abort."""

    COMMIT = 0
    ABORT = 1


_PREPARED = {2: TransactionOutcome.COMMIT, 3: TransactionOutcome.ABORT}
_COMPLETE = {4: TransactionOutcome.COMMIT, 5: TransactionOutcome.ABORT}


def outcomes_of(
    consumer: Consumer, transactional_id: str, places: Collection[PartitionId]
) -> dict[PartitionId, TransactionOutcome]:
    """The outcome of the last transaction of this id that wrote to each of these partitions.

    A later transaction of the same id does not count for partitions that it did not write to. Where the transaction
    log has been compacted after the decision, the last outcome of the id counts. Empty if the log has no outcome.

    Args:
        consumer: reads uncommitted records, and is assigned to nothing.

    Raises:
        KafkaException: the broker does not answer, or refuses access to its transaction log.
    """
    last: TransactionOutcome | None = None
    found: dict[PartitionId, TransactionOutcome] = {}
    for value in _log(consumer, transactional_id):
        status = value[_STATUS]
        last = _PREPARED.get(status, _COMPLETE.get(status, last))
        if status in _PREPARED:
            found.update(dict.fromkeys(_partitions(value) & set(places), _PREPARED[status]))
    return found if last is None else dict.fromkeys(places, last) | found


def _log(consumer: Consumer, transactional_id: str) -> Iterator[bytes]:
    """The records of the transaction log for a transactional id, in order."""
    known = consumer.list_topics(TOPIC, timeout=10.0).topics[TOPIC]
    if known.error is not None:
        raise KafkaException(known.error)
    place = TopicPartition(TOPIC, _partition(transactional_id, len(known.partitions)))
    low, end = consumer.get_watermark_offsets(place, timeout=10.0)
    with closing(_records(consumer, place, low, end, _OUTCOME_SECONDS)) as records:
        for message in records:
            key, value = message.key() or b"", message.value()
            if value and key[_KEY_HEAD:] == transactional_id.encode():
                yield value


def _partitions(value: bytes) -> set[PartitionId]:
    """The partitions of a transaction; version 1 writes each length as a varint of length + 1 (KIP-482)."""
    is_flexible = value[1] > 0
    at = _PARTITIONS

    def length(fixed: str) -> int:
        nonlocal at
        if not is_flexible:
            (count,) = struct.unpack_from(fixed, value, at)
            at += struct.calcsize(fixed)
            return int(count)
        count = shift = 0
        while True:
            byte = value[at]
            at += 1
            count |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return count - 1

    found = set[PartitionId]()
    for _ in range(length(">i")):
        size = length(">h")
        topic = value[at : at + size].decode()
        at += size
        count = length(">i")
        found.update((topic, number) for (number,) in struct.iter_unpack(">i", value[at : at + 4 * count]))
        at += 4 * count
        if is_flexible:
            length("")  # tags, of which there are none
    return found


def _partition(transactional_id: str, count: int) -> int:
    """The transaction log partition of an id: Java's String.hashCode without its sign (Kafka's Utils.abs)."""
    hashed = 0
    raw = transactional_id.encode("utf-16-be")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >> 31 else hashed
    return (0 if signed == -(1 << 31) else abs(signed)) % count


_GRACE = 1.0
_SECONDS = 10.0


@dataclass
class _Hung:
    """The open transaction of one writer: its partitions, and the changelog checkpoint (`@`) of each."""

    writer: str
    places: list[TopicPartition] = field(default_factory=list)
    checkpoints: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Hanging:
    """Finds hanging transactions that block partitions of a category, and ends them.

    Every worker's transaction first writes a changelog checkpoint (`@`) to each state partition, so the record at the
    last stable offset of a state partition names the writer. If several workers find the same hanging transaction, the
    owner of its first partition ends it: a second takeover would interrupt the first.

    Args:
        stable, uncommitted: consumers of committed and of all records, with the workers' group id but not members of
            the group, so neither waits for a rebalance. The end that `stable` sees is the last stable offset.
        commands: the topic whose offsets are committed. states: every version's state topic, the worker's own first.
        others: the other topics that a worker writes, events first.
        partitions: the partition count of each of these topics.
        sent: topics to which a worker may have sent commands and answers, with their partition counts.
        source: the `ce_source` of the sent records.
    """

    stable: Consumer
    uncommitted: Consumer
    new_producer: Callable[[str], Producer]
    commands: str
    states: tuple[str, ...]
    others: tuple[str, ...]
    partitions: int
    sent: Mapping[str, int] = field(default_factory=dict)
    source: bytes = b""

    def end(self, mine: Collection[int], *, alone: bool = False, overdue: bool = True) -> list[str]:
        """Ends the hanging transactions on these partitions; returns the transactional ids taken over.

        `alone`: no other worker seems to do it, so this one does not leave it to the owner of the first partition.
        `overdue`: a transaction would have timed out by now. Until then an unstable offset counts only together with
        open records, since a coordinator that answers slowly looks the same although the writer is alive.

        Raises:
            InfrastructureError: the brokers no longer know the outcome of a transaction.
        """
        ended = []
        try:
            for writer in sorted(self._hung(mine, overdue=overdue)):
                hung = self._whole(writer, mine)
                if hung.checkpoints and (alone or min(hung.checkpoints) in mine):
                    self._end(hung)
                    ended.append(writer)
        except KafkaException as error:
            # A broker that is slow or unreachable is asked again at the next call.
            if not (kafka_error(error).retriable() or code_of(error) in UNREACHABLE):
                raise
        return ended

    def holds(self, partitions: Collection[int]) -> bool:
        """Whether a transaction is open on any of these partitions."""
        return not self._is_stable(partitions) or any(self._open(p) for p in partitions)

    def await_none(self, mine: Collection[int], lost: Collection[int], writer: str, seconds: float) -> None:
        """Waits until no transaction is open on `mine`, and none of `writer` on the partitions that it lost.

        Raises:
            Fenced: one is still open after `seconds`; this process must end, and the next owner ends the transaction.
        """
        deadline = time.monotonic() + seconds
        while self.holds(mine) or writer in self._hung(lost):
            if time.monotonic() > deadline:
                raise Fenced(f"a transaction hangs on {self.commands}{sorted(mine)}; this process ends")
            time.sleep(0.05)

    def _end(self, hung: _Hung) -> None:
        """Takes over the transactional id, which ends its open transaction; writes missing markers with another one.

        A coordinator whose broker was killed between deciding and writing the markers can skip them when it is back
        ("couldn't find leader endpoint", seen on 4.3.1): then one more transaction of the same producer writes them.
        """
        producer = self.new_producer(hung.writer)
        producer.init_transactions(_SECONDS)
        deadline = time.monotonic() + _GRACE
        while self.holds(hung.checkpoints):
            if time.monotonic() > deadline:
                self._settle(producer, self._whole(hung.writer, hung.checkpoints))
                return
            time.sleep(0.05)

    def _settle(self, producer: Producer, hung: _Hung) -> None:
        if not hung.checkpoints:
            return
        places = [*hung.places, *self._sent()]
        outcomes = self._outcomes(hung, places)
        for outcome in sorted(set(outcomes.values())):
            self._decide(producer, hung, [p for p in places if outcomes[p.topic, p.partition] is outcome], outcome)

    def _decide(
        self, producer: Producer, hung: _Hung, places: Iterable[TopicPartition], outcome: TransactionOutcome
    ) -> None:
        """Runs one more transaction of the same producer, with the same outcome, to end the open one."""
        producer.begin_transaction()
        # The offsets come first: committing them may fail, and no record is visible yet.
        offsets = [
            TopicPartition(self.commands, p, ChangelogCheckpoint.decode(checkpoint).commands, new_token())
            for p, checkpoint in hung.checkpoints.items()
        ]
        producer.send_offsets_to_transaction(offsets, self.uncommitted.consumer_group_metadata(), _SECONDS)
        for place in places:
            marker: Any = SETTLED if place.topic in self.others else NO_INPUT
            is_state = place.topic in self.states
            value, headers = (hung.checkpoints[place.partition], None) if is_state else (b"{}", marker)
            producer.produce(place.topic, value, MARK, place.partition, headers=headers)
        if producer.flush(_SECONDS):
            raise InfrastructureError(
                f"the records that end a transaction of {hung.writer} were not delivered within {_SECONDS:.0f} s"
            )
        is_commit = outcome is TransactionOutcome.COMMIT
        (producer.commit_transaction if is_commit else producer.abort_transaction)(_SECONDS)

    def _sent(self) -> list[TopicPartition]:
        """The partitions in which sent commands and answers of this category's workers are not committed yet."""
        return [
            place
            for topic, count in self.sent.items()
            for place in (TopicPartition(topic, p) for p in range(count))
            if (stable := self._end_of(place, stable=True)) < self._end_of(place, stable=False)
            and is_written_by(self.uncommitted, place, stable, self.source)
        ]

    def _outcomes(self, hung: _Hung, places: Iterable[TopicPartition]) -> dict[PartitionId, TransactionOutcome]:
        """The outcome for each partition; where only offsets are open, the outcome of the event partitions counts."""
        wanted = [(p.topic, p.partition) for p in places] or [(self.others[0], p) for p in hung.checkpoints]
        what = f"a transaction of {hung.writer} hangs on partitions {sorted(hung.checkpoints)} of {self.commands}"
        try:
            outcomes = outcomes_of(self.uncommitted, hung.writer, wanted)
        except KafkaException as error:
            why: LeftfoldError = translated(error, doing="reading __transaction_state")
            raise InfrastructureError(f"{what}, and its outcome cannot be read: {why}") from error
        if len(outcomes) < len(set(wanted)):
            raise InfrastructureError(
                f"{what}, and the brokers no longer know its outcome; see kafka-transactions.sh --help"
            )
        return outcomes

    def _hung(self, partitions: Iterable[int], *, overdue: bool = True) -> dict[str, _Hung]:
        """The hanging transactions on these partitions, by writer; those of other producers are left to time out."""
        found: dict[str, _Hung] = {}
        for partition in partitions:
            places = self._open(partition)
            if not places and (not overdue or self._is_stable([partition])):
                continue
            if checkpoint := self._mark(partition, places):
                writer = ChangelogCheckpoint.decode(checkpoint).writer
                hung = found.setdefault(writer, _Hung(writer))
                hung.places += places
                hung.checkpoints[partition] = checkpoint
        return found

    def _whole(self, writer: str, known: Collection[int]) -> _Hung:
        """Everything a writer has open, on the known partitions and on all others."""
        found = self._hung(known).get(writer, _Hung(writer))
        for partition in set(range(self.partitions)) - set(known):
            places = self._open(partition)
            checkpoint = self._mark(partition, places) if any(p.topic in self.states for p in places) else b""
            if checkpoint and ChangelogCheckpoint.decode(checkpoint).writer == writer:
                found.places += places
                found.checkpoints[partition] = checkpoint
        return found

    def _mark(self, partition: int, places: Iterable[TopicPartition]) -> bytes:
        """The changelog checkpoint at the last stable offset or, if no state partition hangs, the last committed."""
        for place in (one for one in places if one.topic in self.states):
            if checkpoint := mark_at(self.uncommitted, place, self._end_of(place, stable=True)):
                return checkpoint
        checkpoints = [last_mark(self.stable, TopicPartition(topic, partition)) for topic in self.states]
        return max(filter(None, checkpoints), key=lambda one: ChangelogCheckpoint.decode(one).commands, default=b"")

    def _open(self, partition: int) -> list[TopicPartition]:
        places = [TopicPartition(topic, partition) for topic in (*self.states, *self.others)]
        return [p for p in places if self._end_of(p, stable=True) < self._end_of(p, stable=False)]

    def _end_of(self, place: TopicPartition, *, stable: bool) -> int:
        return _end(self.stable if stable else self.uncommitted, place)

    def _is_stable(self, partitions: Collection[int]) -> bool:
        """Whether no offset of these partitions is pending in a transaction; a pending one blocks the call."""
        wanted = [TopicPartition(self.commands, p) for p in partitions]
        if not wanted:
            return True
        try:
            return not any(tp.error for tp in self.stable.committed(wanted, timeout=1.0))
        except KafkaException:
            # Raises if no broker answers at all.
            self.uncommitted.committed(wanted, timeout=1.0)
            return False
