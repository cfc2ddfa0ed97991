"""Ends open transactions of dead workers as their coordinator decided, so that readers can continue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import MARK, SETTLED, ChangelogCheckpoint
from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import UNREACHABLE, code_of, kafka_error, translated
from leftfold.kafka.records import raw
from leftfold.kafka.worker import transaction_log
from leftfold.kafka.worker.aborted_records import Span, settling_note
from leftfold.kafka.worker.poison_pills import new_token
from leftfold.kafka.worker.transaction_log import TransactionOutcome, last_places, outcomes_of, records_between
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId

__all__ = ["Hanging", "last_mark"]


_FIRST_STEP = 200
_SECONDS, _COMMIT_SECONDS, _GRACE = 10.0, 60.0, 1.0
_SKEW, _SKEW_OF_CLIENTS = 5000, 60_000
"""Milliseconds by which the clock of another broker, or of a client, may be ahead of a broker's."""


def mark_at(consumer: Consumer, place: TopicPartition, offset: int) -> bytes:
    """The first changelog checkpoint (`@`) at or after an offset; b"" if there is none."""
    with closing(_marks(consumer, place, offset, _end(consumer, place))) as marks:
        return next(marks, b"")


def last_mark(consumer: Consumer, place: TopicPartition) -> bytes:
    """The last changelog checkpoint (`@`) that the consumer sees; b"" if there is none.

    Raises:
        KafkaException: no answer in time, among others.
    """
    found = _last_marks(consumer, place, bool)
    return found[-1] if found else b""


def marks_since(consumer: Consumer, place: TopicPartition, checkpoint: bytes) -> list[bytes]:
    """The changelog checkpoints behind a given one that the consumer sees; none if it is not there."""
    found = _last_marks(consumer, place, lambda marks: checkpoint in marks)
    return found[found.index(checkpoint) + 1 :] if checkpoint in found else []


def _last_marks(
    consumer: Consumer, place: TopicPartition, is_enough: Callable[[Collection[bytes]], bool]
) -> list[bytes]:
    """The changelog checkpoints among the last records, of more and more of them until they are enough."""
    low, end = consumer.get_watermark_offsets(place, timeout=5.0)
    step = _FIRST_STEP
    while True:
        start = max(low, end - step)
        found = list(_marks(consumer, place, start, end))
        if is_enough(found) or start <= low:
            return found
        step *= 10


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


def _writer(checkpoint: bytes) -> str:
    return ChangelogCheckpoint.decode(checkpoint).writer


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
        source: the `ce_source` of the sent records. prefix: of the transactional ids of the category's workers.
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
    prefix: str = ""
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

    def end_sent(self, place: TopicPartition, begin: int, own: str) -> str | None:
        """Ends a transaction of this category's workers that hangs on a partition where they have sent something.

        It takes over those that may have decided it, up to one that has something open on partitions of its own: it may
        be alive, or who restores these ends what it has sent, too.

        Args:
            own: the transactional id of this worker, which has nothing open.

        Returns:
            The transactional id; '' if others have written the record at `begin`, None if that is to be seen later.

        Raises:
            KafkaException: no answer in time, or a right is missing, among others.
            InfrastructureError: it is none of those that the transaction log names.
        """
        with closing(records_between(self.uncommitted, place, begin, self._end_of(place, stable=False))) as records:
            first = next(records, None)
        if first is None or header(raw(first).headers, "ce_source") != self.source:
            return ""
        kind, written_at = first.timestamp()
        since = written_at - (_SKEW if kind == TIMESTAMP_LOG_APPEND_TIME else _SKEW_OF_CLIENTS)
        writers = transaction_log.transactional_ids(
            self.uncommitted, self.prefix, (place.topic, place.partition), since
        )
        writers.pop(own, None)
        busy = self._hung(range(self.partitions))
        for writer, outcome in writers.items():
            if writer in busy:
                return None
            producer = self.new_producer(writer)
            producer.init_transactions(_SECONDS)
            if not self._is_past(place, begin):
                self._decide(producer, _Hung(writer), [place], outcome)
            if self._is_past(place, begin):
                return writer
        why = "none of the transactional ids that the transaction log names for it has ended it"
        raise InfrastructureError(f"{why}; see kafka-transactions --help")

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
        noted: dict[int, dict[str, Span]] = {}
        for place in places:
            begin, end = self._end_of(place, stable=True), self._end_of(place, stable=False)
            if begin < end and self._is_alone(hung, place.partition):
                ids = ChangelogCheckpoint.decode(hung.checkpoints[place.partition]).topics
                noted.setdefault(place.partition, {})[place.topic] = begin, end, ids.get(place.topic, "")
        for partition, spans in noted.items():
            write(self.events, settling_note(partition, spans))

    def _is_alone(self, hung: _Hung, partition: int) -> bool:
        """Whether what is open on a partition is the writer's alone.

        Another worker that wakes late writes to it before its offsets are refused. Where no state hangs, the writer is
        guessed from the last checkpoint, whose events begin where the open ones do if they are its own.
        """
        checkpoint = hung.checkpoints[partition]
        for place in (TopicPartition(topic, partition) for topic in self.states):
            later = marks_since(self.uncommitted, place, checkpoint)
            if any(_writer(one) != hung.writer for one in later):
                return False
        if any(place.topic in self.states for place in hung.places if place.partition == partition):
            return True
        events = TopicPartition(self.events, partition)
        begin, stable = ChangelogCheckpoint.decode(checkpoint).events, self._end_of(events, stable=True)
        if stable == self._end_of(events, stable=False):
            return True
        with closing(records_between(self.stable, events, begin, stable)) as records:
            return all(message.key() == MARK for message in records)

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
        end = producer.commit_transaction if outcome is TransactionOutcome.COMMIT else producer.abort_transaction
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                return end(_SECONDS)
            except KafkaException as error:
                # Given up, it would be aborted by the next one who takes it over.
                if not kafka_error(error).retriable() or time.monotonic() > deadline:
                    raise

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
                f"{what}, and the brokers no longer know its outcome; see kafka-transactions --help"
            )
        return outcomes

    def _hung(self, partitions: Iterable[int], *, overdue: bool = True) -> dict[str, _Hung]:
        """The hanging transactions on these partitions, by writer; those of other producers are left to time out."""
        found: dict[str, _Hung] = {}
        for partition in partitions:
            places = self._open(partition)
            if not places and (not overdue or self._is_stable([partition])):
                continue
            for checkpoint in self._candidates(partition, places):
                writer = _writer(checkpoint)
                hung = found.setdefault(writer, _Hung(writer))
                if partition not in hung.checkpoints:
                    hung.places += places
                hung.checkpoints[partition] = checkpoint
        return found

    def _whole(self, writer: str, known: Collection[int]) -> _Hung:
        """Everything a writer has open, on the known partitions and on all others."""
        found = self._hung(known).get(writer, _Hung(writer))
        for partition in set(range(self.partitions)) - set(known):
            places = self._open(partition)
            has_state = any(p.topic in self.states for p in places)
            for checkpoint in self._candidates(partition, places) if has_state else ():
                if _writer(checkpoint) == writer:
                    found.places += places
                    found.checkpoints[partition] = checkpoint
        return found

    def _candidates(self, partition: int, places: Iterable[TopicPartition]) -> list[bytes]:
        """The changelog checkpoint at the last stable offset; if no state partition hangs, each that may be its own.

        That is the last committed one, and any aborted since whose writer's last transaction was on one of these
        places: a broker may have ended that on the state, and have forgotten the rest.
        """
        for place in (one for one in places if one.topic in self.states):
            if checkpoint := mark_at(self.uncommitted, place, self._end_of(place, stable=True)):
                return [checkpoint]
        states = [TopicPartition(topic, partition) for topic in self.states]
        found = [(checkpoint, place) for place in states if (checkpoint := last_mark(self.stable, place))]
        if not found:
            return []
        last, place = max(found, key=lambda one: ChangelogCheckpoint.decode(one[0]).commands)
        open_ = {(one.topic, one.partition) for one in places}
        since = {_writer(one): one for one in marks_since(self.uncommitted, place, last)} if open_ else {}
        since.pop(_writer(last), None)
        return [last, *(one for writer, one in since.items() if open_ & last_places(self.uncommitted, writer))]

    def _open(self, partition: int) -> list[TopicPartition]:
        places = [TopicPartition(topic, partition) for topic in (*self.states, *self.others)]
        return [p for p in places if self._end_of(p, stable=True) < self._end_of(p, stable=False)]

    def _end_of(self, place: TopicPartition, *, stable: bool) -> int:
        return _end(self.stable if stable else self.uncommitted, place)

    def _is_past(self, place: TopicPartition, offset: int) -> bool:
        """Whether readers of committed records get past an offset within a second."""
        deadline = time.monotonic() + _GRACE
        while (stable := self._end_of(place, stable=True)) <= offset and time.monotonic() < deadline:
            time.sleep(0.05)
        return stable > offset

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
