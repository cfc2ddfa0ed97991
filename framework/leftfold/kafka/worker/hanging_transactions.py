"""Ends open transactions of dead workers as their coordinator decided, so that readers can continue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import MARK, SETTLED, SETTLING, ChangelogCheckpoint
from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import UNREACHABLE, code_of, kafka_error, translated
from leftfold.kafka.records import raw
from leftfold.kafka.worker.poison_pills import new_token
from leftfold.kafka.worker.transaction_log import TransactionOutcome, outcomes_of, records_between
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Outgoing, Write
from leftfold.ports.protocols import PartitionId, RawRecord

__all__ = ["Hanging", "last_mark", "lost_records", "read_settling", "wait_ended"]


_FIRST_STEP = 200
_SECONDS, _GRACE, _UNANSWERED, OVERDUE = 10.0, 1.0, 60.0, 5.0
_LONGEST = 2_000_000
"""The most records of a transaction: what the queue of a worker's producer holds."""
_SETTLING_TYPE = dict(SETTLING)["ce_type"]


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


def read_settling(record: RawRecord) -> dict[str, tuple[int, int, str]]:
    """What is committed by a note that `Hanging` writes before it ends a transaction: offsets and topic id, by topic.

    Empty if the record, which any client with write access may have written, is no such note.
    """
    if record.key != MARK or header(record.headers, "ce_type") != _SETTLING_TYPE:
        return {}
    try:
        noted = {topic: (begin, end, id_) for topic, (begin, end, id_) in json.loads(record.value or b"").items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    spans = all(
        type(begin) is type(end) is int and 0 <= begin < end <= begin + _LONGEST for begin, end, _ in noted.values()
    )
    return noted if spans and all(isinstance(id_, str) for _, _, id_ in noted.values()) else {}


def lost_records(
    stable: Consumer,
    uncommitted: Consumer,
    partition: int,
    noted: Iterable[tuple[str, tuple[int, int, str]]],
    ids: Mapping[str, str],
) -> list[Write]:
    """What was committed by these notes, but aborted with the transaction that should have ended it, by topic.

    A record is not lost if one of the same id, or of the same key where records have none, was committed since. Notes
    about a topic that has another id now do not count.
    """
    lost: dict[str, dict[bytes, Outgoing]] = {}
    for topic, (begin, end, id_) in noted:
        if id_ not in ("", ids.get(topic, id_)):
            continue
        found: dict[bytes, Outgoing] = {}
        place = TopicPartition(topic, partition)
        start = max(begin, uncommitted.get_watermark_offsets(place, timeout=5.0)[0])
        for record in _messages(uncommitted, place, start, end):
            found[_identity(record)] = Outgoing(partition, record.key, record.value, record.headers)
        for record in _messages(stable, place, start, _end(stable, place)):
            found.pop(_identity(record), None)
            if not found:
                break
        if found:
            lost[topic] = lost.get(topic, {}) | found
    return [(topic, list(found.values())) for topic, found in lost.items()]


def _messages(consumer: Consumer, place: TopicPartition, start: int, end: int) -> Iterator[RawRecord]:
    """The records between two offsets, without those of key `@`."""
    with closing(records_between(consumer, place, start, end)) as records:
        yield from (record for record in map(raw, records) if record.key != MARK)


def _identity(record: RawRecord) -> bytes:
    return header(record.headers, "ce_id") or record.key or b""


def is_written_by(consumer: Consumer, place: TopicPartition, start: int, source: bytes) -> bool:
    """Whether any record at or after an offset has this `ce_source`."""
    with closing(records_between(consumer, place, start, _end(consumer, place))) as records:
        return any(dict(message.headers() or ()).get("ce_source") == source for message in records)


def _end(consumer: Consumer, place: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(place, timeout=5.0)[1])


def _marks(consumer: Consumer, place: TopicPartition, start: int, end: int) -> Generator[bytes]:
    """The changelog checkpoints between two offsets."""
    with closing(records_between(consumer, place, start, end)) as records:
        for message in records:
            if message.key() == MARK and (value := message.value()) and ChangelogCheckpoint.read(value) is not None:
                yield value


@dataclass
class _Hung:
    """The open transaction of one writer: its partitions, and the changelog checkpoint (`@`) of each."""

    writer: str
    places: list[TopicPartition] = field(default_factory=list)
    checkpoints: dict[int, bytes] = field(default_factory=dict)


def wait_ended(stable: Consumer, ends: Mapping[PartitionId, int], renew: Callable[[str], None]) -> None:
    """Waits until no transaction is open before the end offset of each partition that a committed one has written to.

    Args:
        stable: reads committed records. renew: initialises the producer again, which returns once the coordinator has
            ended its last transaction; called when that takes long.

    Raises:
        Fenced: it has ended, and hangs all the same; this process must end, and the next owner ends the transaction.
        InfrastructureError: no broker answered within 60 s.
    """
    open_, now = [TopicPartition(*place, OFFSET_END) for place in ends], time.monotonic()
    unanswered, overdue, pause, is_renewed = now + _UNANSWERED, now + OVERDUE, 1e-5, False
    while open_:
        try:
            found = stable.offsets_for_times(open_, timeout=4.0)
        except KafkaException as error:
            if (now := time.monotonic()) > unanswered:
                doing = f"asking for the ends of {', '.join(sorted({topic for topic, _ in ends}))}"
                raise translated(error, doing=doing) from error
            overdue, pause = now + OVERDUE, 0.1
        else:
            behind = [tp for tp in found if tp.error or tp.offset < ends[tp.topic, tp.partition]]
            open_ = [TopicPartition(tp.topic, tp.partition, OFFSET_END) for tp in behind]
            if open_ and time.monotonic() > overdue:
                hangs = ", ".join(sorted(f"{tp.topic}[{tp.partition}]" for tp in open_))
                if is_renewed:
                    raise Fenced(
                        f"a committed transaction hangs on {hangs}; this process ends, and the next owner of its "
                        f"partitions ends the transaction"
                    )
                renew(f"a committed transaction has not ended on {hangs}")
                overdue, is_renewed = time.monotonic() + _GRACE, True
            pause = min(2 * pause, 0.002)
        if open_:
            time.sleep(pause)


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
        events: the topic of events; '' for a process. write: writes a record at once, outside of transactions.
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
    events: str = ""
    write: Callable[[str, Outgoing], object] | None = None

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
        if self.write is not None and self.events:
            committed = [p for p in hung.places if outcomes[p.topic, p.partition] is TransactionOutcome.COMMIT]
            self._note(hung, committed, self.write)
        for outcome in sorted(set(outcomes.values())):
            self._decide(producer, hung, [p for p in places if outcomes[p.topic, p.partition] is outcome], outcome)

    def _note(self, hung: _Hung, places: Iterable[TopicPartition], write: Callable[[str, Outgoing], object]) -> None:
        """Notes which records are committed: if this process is killed while it ends their transaction, it is aborted.

        The next owner of the partition then writes them again, see `lost_records`.
        """
        noted: dict[int, dict[str, tuple[int, int, str]]] = {}
        for place in places:
            ids = ChangelogCheckpoint.decode(hung.checkpoints[place.partition]).topics
            span = self._end_of(place, stable=True), self._end_of(place, stable=False)
            noted.setdefault(place.partition, {})[place.topic] = *span, ids.get(place.topic, "")
        for partition, spans in noted.items():
            write(self.events, Outgoing(partition, MARK, json.dumps(spans).encode(), SETTLING))

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
