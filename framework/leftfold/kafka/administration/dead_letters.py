"""Reads, resends, discards and skips the dead letters of a category or process; reads and writes single records."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.errors import ContractError, Fenced
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import STATE, Topic, make
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.records import KafkaMessage, place
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Position, RecordAddress
from leftfold.ports.bulk import read_whole
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import (
    DISCARDED,
    SENDING,
    SENT,
    Letter,
    Outgoing,
    handled_marker,
    letters_in,
    sent_again,
    skip_marker,
)
from leftfold.ports.protocols import RawRecord

__all__ = [
    "DeadLetters", "FencedProducer", "LetterTransactions", "record_at", "write_record", "write_records", "write_with",
]  # fmt: skip


_SECONDS, _PAUSE = 20, 0.1


def record_at(settings: KafkaSettings, topic: str, partition: int, offset: int) -> RawRecord:
    """Reads the committed record at an offset.

    Raises:
        ContractError: there is none, or no such topic. InfrastructureError: no broker answers.
    """
    with closing(KafkaLogReader(settings)) as log:
        place, behind = Position.at(topic, partition, offset), Position.at(topic, partition, offset + 1)
        is_there = topic in log.identities([topic]) and log.ends([topic]).covers(behind)
        if is_there and log.starts([topic]).next_offset(topic, partition) <= offset:
            for record in read_whole(log, place, behind):
                if record.offset == offset:
                    return record
    raise ContractError(f"{topic}[{partition}]@{offset}: no committed record stands there, or not any more")


def write_record(settings: KafkaSettings, topic: str, out: Outgoing) -> int:
    """Writes a record as `write_records` does, and returns its offset."""
    return write_records(settings, topic, [out], doing=f"writing to {topic}")[0]


def write_records(settings: KafkaSettings, topic: str, records: Sequence[Outgoing], *, doing: str) -> list[int]:
    """Writes records, waits until every in-sync replica has them, and returns the offsets in the order of delivery.

    Args:
        doing: the first words of an error.

    Raises:
        InfrastructureError: delivery was not confirmed within 20 s; the records may have been written.
    """
    config: dict[str, Any] = {
        **settings.librdkafka(),
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": _SECONDS * 1000,
    }
    try:
        return write_with(Producer(config, logger=QuietLog("record")), topic, records)
    except KafkaException as error:
        raise translated(error, doing=doing) from error


def write_with(producer: Producer, topic: str, records: Sequence[Outgoing]) -> list[int]:
    """Writes records and waits until the producer has delivered them; their offsets, in the order of delivery.

    Raises:
        KafkaException: one was not delivered within the timeout of the producer, or was refused.
    """
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: KafkaMessage) -> None:
        if error is None:
            offsets.append(place(message)[1])
        else:
            failures.append(error)

    for partition, key, value, headers in records:
        producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=delivered)
    while len(offsets) < len(records) and not failures:
        producer.flush(_PAUSE)  # Python handles signals only between these calls
    if failures:
        raise KafkaException(failures[0])
    return offsets


class DeadLetters:
    """The dead letters in `{category}.dead`.

    No letter is deleted; a handled one has a later record that marks it as handled.
    """

    def __init__(self, category: str, settings: KafkaSettings) -> None:
        self._category, self._topic, self._settings = category, names.dead(category), settings

    def read(self, most: int = sys.maxsize, *, values: bool = True) -> list[Letter]:
        """Reads the dead letters among the last `most` offsets of each partition, with how each was handled.

        Args:
            values: whether their values are kept, which may be too many for the memory.
        """
        with ClusterAdmin(self._settings) as cluster:
            starts, ends = cluster.starts([self._topic]), cluster.ends([self._topic])
        last = Position({self._topic: {p: max(0, end - most) for p, end in ends.offsets[self._topic].items()}})
        records = self._records(starts | last, ends)
        return letters_in(one if values else one._replace(value=None) for one in records)

    def at(self, places: Collection[RecordAddress]) -> dict[RecordAddress, Letter]:
        """Reads the letters at some addresses, and of others no more than is needed to see how these were handled."""
        with ClusterAdmin(self._settings) as cluster:
            starts, ends = cluster.starts([self._topic]), cluster.ends([self._topic])
        firsts = dict(ends.offsets[self._topic])
        for _, partition, offset in places:
            if partition in firsts:
                firsts[partition] = min(offset, firsts[partition])
        records = self._records(starts | Position({self._topic: firsts}), ends)
        found = letters_in(one if one.address in places else one._replace(value=None) for one in records)
        return {letter.place: letter for letter in found if letter.place in places}

    def original(self, letter: Letter) -> RawRecord:
        """The original record; one that was too large to copy is read from its topic.

        Raises:
            ContractError: it is no longer there.
        """
        if not header(letter.record.headers, "dead_reference"):
            return letter.record
        return record_at(self._settings, *RecordAddress.from_source(letter.source))

    def skip(self, letter: Letter, why: str) -> None:
        """Has restores skip the event at which a worker stands still, according to its dead letter.

        Dead letters and their markers expire; the skip record of an event stays as long as the event.
        """
        marker, topic = skip_marker(letter, why), names.skipped(self._category)
        with ClusterAdmin(self._settings) as cluster:
            if not cluster.partition_counts([topic]):
                count = cluster.partitions(self._topic)
                make(cluster, [Topic(topic, count, STATE)])
        write_record(self._settings, topic, marker._replace(key=letter.source.encode(), value=b"{}"))
        write_record(self._settings, self._topic, marker)

    def _records(self, start: Position, end: Position) -> Iterator[RawRecord]:
        with closing(KafkaLogReader(self._settings)) as log:
            yield from read_whole(log, start, end)


class FencedProducer:
    """A producer of transactions that ends the others with its id: of two operators at once the earlier one is stopped.

    Args:
        topic: its letters or parked events. doing: the first words of an error. next_step: said to who is ended.

    Raises:
        InfrastructureError: no broker answers. ConfigurationError: this login has not the right to the id.
    """

    def __init__(self, settings: KafkaSettings, topic: str, *, doing: str, next_step: str) -> None:
        self._topic, self._doing, self._next_step = topic, doing, next_step
        config: dict[str, Any] = {
            **settings.librdkafka(),
            "transactional.id": f"leftfold.{topic}",
            "transaction.timeout.ms": 10_000,
        }
        with self._translating():
            self._producer = Producer(config, logger=QuietLog("operator"))
            self._producer.init_transactions(_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of what is written in the block.

        Raises:
            Fenced: another operator is at work. InfrastructureError: delivery was not confirmed.
        """
        with self._translating():
            self._producer.begin_transaction()
            try:
                yield
                self._producer.commit_transaction(_SECONDS)
            except BaseException:
                with suppress(KafkaException):  # else it ends with its timeout, and its partitions wait for that
                    self._producer.abort_transaction(_SECONDS)
                raise

    def write(self, topic: str, records: Sequence[Outgoing]) -> list[int]:
        """Writes records in the transaction; returns their offsets in the order of delivery."""
        return write_with(self._producer, topic, records)

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            found = translated(error, doing=self._doing)
            if isinstance(found, Fenced):
                found = Fenced(f"another operator is at work on {self._topic}, and this one stopped; {self._next_step}")
            raise found from error


class LetterTransactions:
    """Resends and discards dead letters of one category, which one operator at a time can do.

    Each letter is one transaction: what is sent, and the marker that says so. A producer of the same transactional id
    fences the others, and only then reads which letters wait; so of two operators one is refused, and no kill leaves a
    letter that was sent without its marker.

    Raises:
        ContractError: one of the letters does not wait any more; nothing was changed.
        InfrastructureError: no broker answers. ConfigurationError: this login has not the right to the id.
    """

    def __init__(self, category: str, settings: KafkaSettings, letters: Iterable[Letter]) -> None:
        self._category, self._topic, self._settings = category, names.dead(category), settings
        self._kept = DeadLetters(category, settings)
        doing, next_step = (
            f"handling letters of {self._topic}",
            f"see which letters wait: leftfold dead list {category}",
        )
        self._producer = FencedProducer(settings, self._topic, doing=doing, next_step=next_step)
        letters = list(letters)
        there = self._kept.at({letter.place for letter in letters})
        for letter in letters:
            if (now := there.get(letter.place)) is None or now.handled:
                how = f"is {now.handled} already, {now.why}" if now else "is there no more"
                raise ContractError(f"{letter.place} {how}; nothing was changed")

    def resend(self, letter: Letter, why: str, *, id_: str = "", body: bytes | None = None) -> tuple[int, str]:
        """Sends the original bytes as a new record of `{category}.commands`; returns its offset and its id.

        Another `body` replaces the value, not the key and the headers. An input of a process gets the offset of a
        marker as its origin: inputs are deduplicated by origins, which have to grow.

        Raises:
            ContractError: the original bytes are not available.
            Fenced: another operator is at work on these letters. InfrastructureError: delivery was not confirmed.
        """
        original, topic = self._kept.original(letter), names.commands(self._category)
        if body is not None:
            original = original._replace(value=body)
        home, origin = partition_of(original.key or b"", self._partitions), ""
        with self._producer.transaction():
            if header(original.headers, "origin") and not header(original.headers, "reply_to"):
                marker = self._write(self._topic, handled_marker(letter, SENDING, why))
                origin = f"{self._topic}/{letter.record.partition}/{marker}/0"
            again = sent_again(original, home, id_=id_, origin=origin)
            offset = self._write(topic, again)
            self._write(self._topic, handled_marker(letter, SENT, why))
        return offset, header(again.headers, "ce_id").decode(errors="replace")

    def discard(self, letter: Letter, why: str) -> None:
        """Marks a dead letter as discarded.

        Raises:
            Fenced: another operator is at work on these letters. InfrastructureError: delivery was not confirmed.
        """
        with self._producer.transaction():
            self._write(self._topic, handled_marker(letter, DISCARDED, why))

    @cached_property
    def _partitions(self) -> int:
        with ClusterAdmin(self._settings) as cluster:
            return cluster.partitions(names.commands(self._category))

    def _write(self, topic: str, out: Outgoing) -> int:
        return self._producer.write(topic, [out])[0]
