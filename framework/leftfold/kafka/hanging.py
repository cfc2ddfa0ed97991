"""Ends transactions whose writer is gone: by taking over its transactional id, and as they were decided to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.statemark import MARK, SETTLED, StateMark
from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.offsets import new_token
from leftfold.kafka.outcomes import Outcome, last_outcome

__all__ = ["Hanging"]

_BACK = 200
_GRACE = 1.0
_SECONDS = 10.0


@dataclass
class _Hung:
    """One writer's open ends: where, and the last `@` of each state partition concerned."""

    places: list[TopicPartition] = field(default_factory=list)
    marks: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Hanging:
    """Looks for open transactions that hold back partitions of a category, and ends them.

    Every worker's transaction writes `@` first into each state partition it touches, so the uncommitted end of a state
    partition names the writers in question. Of several workers that meet the same hanging transaction, the owner of
    its first partition ends it for all of them: a second takeover would cut the first short.

    Args:
        committed, uncommitted: consumers of committed and of all records, both with the workers' group id. The first
            takes the last stable offset for the end of a partition; the second is no member of the group, so that a
            rebalance cannot spoil the end of a transaction.
        commands: the topic whose offsets are committed. topics: the state topic, then the others that a worker writes.
        partitions: how many each of them has.
    """

    committed: Consumer
    uncommitted: Consumer
    new_producer: Callable[[str], Producer]
    commands: str
    topics: tuple[str, ...]
    partitions: int

    def end(self, mine: Collection[int]) -> list[str]:
        """Ends what hangs on these partitions; returns the transactional ids that were taken over.

        Raises:
            InfrastructureError: nobody knows any more how a transaction was decided to end.
        """
        ended = []
        for writer, hung in sorted(self._hung(range(self.partitions)).items()):
            if min(hung.marks) in mine:
                try:
                    self._end(writer, hung)
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
                ended.append(writer)
        return ended

    def await_none(self, mine: Collection[int], seconds: float) -> None:
        """Waits until no transaction is open on these partitions.

        Raises:
            Fenced: one still is after so many seconds; this process must end, and whoever restores them ends it.
        """
        deadline = time.monotonic() + seconds
        while hung := self._hung(mine):
            if time.monotonic() > deadline:
                raise Fenced(f"a transaction of {', '.join(hung)} hangs on {self.commands}; this process ends")
            time.sleep(0.05)

    def holds(self, partitions: Collection[int]) -> bool:
        """Whether a transaction is open on any of these partitions."""
        return bool(self._hung(partitions))

    def _end(self, writer: str, hung: _Hung) -> None:
        """Takes over, which ends what the coordinator knows to be open; and what it has forgotten, by hand.

        A coordinator whose broker was killed between deciding and writing the markers can skip them when it is back
        ("couldn't find leader endpoint", seen on 4.3.1): then one more transaction of the same producer writes them.
        """
        producer = self.new_producer(writer)
        producer.init_transactions(_SECONDS)
        deadline = time.monotonic() + _GRACE
        while (left := self._hung(list(hung.marks)).get(writer)) is not None:
            if time.monotonic() > deadline:
                self._settle(producer, writer, left)
                return
            time.sleep(0.05)

    def _settle(self, producer: Producer, writer: str, hung: _Hung) -> None:
        outcome = last_outcome(self.uncommitted, writer)
        if outcome is None:
            raise InfrastructureError(
                f"a transaction of {writer} hangs on partitions {sorted(hung.marks)} of {self.commands}, and the "
                f"brokers have forgotten how it was decided to end; see kafka-transactions.sh --help"
            )
        state, events = self.topics[0], self.topics[1]
        producer.begin_transaction()
        # First what may fail, then what shows.
        offsets = [
            TopicPartition(self.commands, p, StateMark.decode(mark).commands, new_token())
            for p, mark in hung.marks.items()
        ]
        producer.send_offsets_to_transaction(offsets, self.uncommitted.consumer_group_metadata(), _SECONDS)
        for place in hung.places:
            if place.topic == state:
                producer.produce(state, hung.marks[place.partition], MARK, place.partition)
            else:
                headers: Any = SETTLED if place.topic == events else [*SETTLED, ("dead_reason", b"settled")]
                producer.produce(place.topic, b"{}", MARK, place.partition, headers=headers)
        producer.flush(_SECONDS)
        if outcome is Outcome.COMMIT:
            producer.commit_transaction(_SECONDS)
        else:
            producer.abort_transaction(_SECONDS)

    def _hung(self, partitions: Collection[int]) -> dict[str, _Hung]:
        """What hangs on these partitions, by writer."""
        found: dict[str, _Hung] = {}
        unstable = set() if self._is_stable(partitions) else {p for p in partitions if not self._is_stable([p])}
        for partition in partitions:
            places = [TopicPartition(topic, partition) for topic in self.topics]
            open_ = [place for place in places if self._stable(place) < self._end_of(place)]
            if (open_ or partition in unstable) and (mark := self._last_mark(partition)):
                hung = found.setdefault(StateMark.decode(mark).writer, _Hung())
                hung.places += open_
                hung.marks[partition] = mark
        return found

    def _is_stable(self, partitions: Collection[int]) -> bool:
        """Whether no committed offset of these waits for the end of a transaction: then a question does, too."""
        wanted = [TopicPartition(self.commands, p) for p in partitions]
        self.uncommitted.committed(wanted, timeout=_SECONDS)
        try:
            return not any(tp.error for tp in self.committed.committed(wanted, timeout=0.5))
        except KafkaException:
            return False

    def _stable(self, place: TopicPartition) -> int:
        return int(self.committed.get_watermark_offsets(place, timeout=5.0)[1])

    def _end_of(self, place: TopicPartition) -> int:
        return int(self.uncommitted.get_watermark_offsets(place, timeout=5.0)[1])

    def _last_mark(self, partition: int) -> bytes:
        """The first `@` behind the last stable offset or, when the state partition itself is free, the last `@`."""
        place = TopicPartition(self.topics[0], partition)
        stable, end = self._stable(place), self._end_of(place)
        mark = b""
        consumer = self.uncommitted
        consumer.assign([TopicPartition(place.topic, partition, min(stable, max(0, end - _BACK)))])
        try:
            while (message := consumer.poll(2.0)) is not None and message.error() is None:
                offset = message.offset() or 0
                if message.key() == MARK and (offset >= stable or stable >= end):
                    mark = message.value() or mark
                    if offset >= stable:
                        break
                if offset >= end - 1:
                    break
        finally:
            consumer.unassign()
        return mark
