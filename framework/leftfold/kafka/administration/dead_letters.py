"""Reads, resends, discards and skips the dead letters of a category or process; reads and writes single records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.errors import ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import STATE, Topic, make
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.records import KafkaMessage, place
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.state_encoding import number_in
from leftfold.ports.bulk import read_to
from leftfold.ports.codec import header
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

__all__ = ["DeadLetters", "record_at", "write_record", "write_records"]


_SECONDS, _PAUSE = 20, 0.1


def record_at(settings: KafkaSettings, topic: str, partition: int, offset: int) -> RawRecord:
    """Reads the committed record at an offset.

    Raises:
        ContractError: there is none. InfrastructureError: no broker answers, or the topic does not exist.
    """
    with closing(KafkaLogReader(settings)) as log:
        place, behind = Position.at(topic, partition, offset), Position.at(topic, partition, offset + 1)
        if log.ends([topic]).covers(behind) and log.starts([topic]).next_offset(topic, partition) <= offset:
            for record in chain.from_iterable(read_to(log, place, behind, patience=_SECONDS, limit=1)):
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
    producer = Producer(config, logger=QuietLog("record"))
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: KafkaMessage) -> None:
        if error is None:
            offsets.append(place(message)[1])
        else:
            failures.append(error)

    try:
        for partition, key, value, headers in records:
            producer.produce(topic, value, key, partition, headers=list(headers), on_delivery=delivered)
    except KafkaException as error:
        raise translated(error, doing=doing) from error
    while len(offsets) < len(records) and not failures:
        producer.flush(_PAUSE)  # Python handles signals only between these calls
    if failures:
        raise translated(failures[0], doing=doing)
    return offsets


_PATIENCE = 15.0


class DeadLetters:
    """The dead letters in `{category}.dead`.

    No letter is deleted; a handled one has a later record that marks it as handled.
    """

    def __init__(self, category: str, settings: KafkaSettings) -> None:
        self._category, self._topic, self._settings = category, names.dead(category), settings

    def read(self) -> list[Letter]:
        """Reads all dead letters, with how each was handled."""
        return letters_in(self._records())

    def original(self, letter: Letter) -> RawRecord:
        """The original record; one that was too large to copy is read from its topic.

        Raises:
            ContractError: it is no longer there.
        """
        if not header(letter.record.headers, "dead_reference"):
            return letter.record
        topic, partition, offset = letter.source.rsplit("/", 2)
        return record_at(self._settings, topic, number_in(partition) or 0, number_in(offset) or 0)

    def resend(self, letter: Letter, why: str, *, id_: str = "", body: bytes | None = None) -> tuple[int, str]:
        """Sends the original bytes as a new record of `{category}.commands`; returns its offset and its id.

        Another `body` replaces the value, not the key and the headers.

        An input of a process manager is deduplicated by its origin. Its origin is here the offset of a marker that is
        written first, so an input that is sent twice, after a kill in between, also counts once.

        Raises:
            ContractError: the original bytes are not available. InfrastructureError: delivery was not confirmed.
        """
        original, origin = self.original(letter), ""
        if body is not None:
            original = original._replace(value=body)
        if header(original.headers, "origin") and not header(original.headers, "reply_to"):
            marker = letter.begun
            if marker is None:
                marker = write_record(self._settings, self._topic, handled_marker(letter, SENDING, why))
            origin = f"{self._topic}/{letter.record.partition}/{marker}/0"
        topic = names.commands(self._category)
        with ClusterAdmin(self._settings) as cluster:
            home = partition_of(original.key or b"", cluster.partitions(topic))
        offset = write_record(self._settings, topic, sent_again(original, home, id_=id_, origin=origin))
        write_record(self._settings, self._topic, handled_marker(letter, SENT, why))
        return offset, id_ or header(original.headers, "ce_id").decode(errors="replace")

    def discard(self, letter: Letter, why: str) -> None:
        """Marks a dead letter as discarded."""
        write_record(self._settings, self._topic, handled_marker(letter, DISCARDED, why))

    def skip(self, letter: Letter, why: str) -> None:
        """Has restores skip the event at which a worker stands still, according to its dead letter.

        Dead letters and their markers expire; the skip record of an event stays as long as the event.
        """
        marker, topic = skip_marker(letter, why), names.skipped(self._category)
        with ClusterAdmin(self._settings) as cluster:
            if not cluster.partition_counts([topic]):
                count = cluster.partitions(self._topic)
                make(cluster, self._settings, [Topic(topic, count, STATE)])
        write_record(self._settings, topic, marker._replace(key=letter.source.encode(), value=b"{}"))
        write_record(self._settings, self._topic, marker)

    def _records(self) -> Iterator[RawRecord]:
        with ClusterAdmin(self._settings) as cluster:
            starts, ends = cluster.starts([self._topic]), cluster.ends([self._topic])
        with closing(KafkaLogReader(self._settings)) as log:
            yield from chain.from_iterable(read_to(log, starts, ends, patience=_PATIENCE))
            if not log.position().covers(ends):
                raise ContractError(
                    f"{self._topic} cannot be read to its end, a transaction is open; see: leftfold doctor"
                )
