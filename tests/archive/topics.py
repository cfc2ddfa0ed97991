"""Topics with a history of every kind: decisions, days, aborted transactions, odd headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.parquet.archive_check import Verified, verify_archive
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.archiver import Archived, Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.ports.bulk import OffsetRange, raw
from leftfold.ports.protocols import RawRecord
from tests.settled import committed, wait_settled
from tests.waiting import WAIT_SECONDS, wait_until

DAY = 86_400_000
BEGUN = 20_000 * DAY
_numbers = count(1)


def decision(*values: bytes, key: bytes = b"k", version: int = 1, whole: int = 0) -> list[dict[str, Any]]:
    """The records of one decision of `whole` events, or as many as there are values."""
    return [
        {"key": key, "value": value, "headers": headers(key, version + n, n + 1, whole or len(values))}
        for n, value in enumerate(values)
    ]


def headers(key: bytes, version: int, k: int, n: int) -> list[tuple[str, bytes]]:
    """What a processor writes."""
    number = next(_numbers)
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"id-%d" % number),
        ("ce_source", b"/tests/things"),
        ("ce_type", b"things.Happened.v1"),
        ("ce_subject", key),
        ("ce_time", b"2026-01-01T00:00:00.%06dZ" % (number % 1_000_000)),
        ("ce_sequence", b"%d" % version),
        ("ce_decision", b"%d/%d" % (k, n)),
        ("ce_correlationid", b"c-%d" % number),
        ("ce_causationid", b"c-%d" % number),
        ("content-type", b"application/json"),
    ]


@dataclass
class Topic:
    """A topic of its own, what is written to it, and its archive."""

    kafka: KafkaSettings
    cluster: ClusterAdmin
    folder: str
    partitions: int = 2
    name: str = field(default_factory=lambda: f"t{uuid4().hex[:12]}.events")

    def __post_init__(self) -> None:
        # With CreateTime a test can write records of many days.
        config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        self.cluster.create(self.name, self.partitions, 1, config)
        made = {self.name: self.partitions}
        wait_until(lambda: self.cluster.partition_counts([self.name]) == made, self.name)
        self._producer: Producer | None = None

    def producer(self) -> Producer:
        producer = Producer({**self.kafka.librdkafka(), "transactional.id": uuid4().hex})
        producer.init_transactions(WAIT_SECONDS)
        return producer

    def open_transaction(self) -> Producer:
        producer = self.producer()
        producer.begin_transaction()
        return producer

    def produce(
        self, producer: Producer, records: Iterable[dict[str, Any]], *, partition: int = 0, at: int = BEGUN
    ) -> None:
        for record in records:
            producer.produce(self.name, partition=partition, timestamp=at, **record)
        producer.flush(WAIT_SECONDS)

    def write(
        self, *decisions: Sequence[dict[str, Any]], partition: int = 0, at: int = BEGUN, commit: bool = True
    ) -> None:
        """Writes decisions in one transaction."""
        producer = self._producer = self._producer or self.producer()
        producer.begin_transaction()
        for records in decisions:
            self.produce(producer, records, partition=partition, at=at)
        (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECONDS)

    def history(self, days: int = 2) -> None:
        """Some days in both partitions, with aborted transactions and decisions of several events between them."""
        for day in range(days):
            for partition in range(self.partitions):
                at = BEGUN + day * DAY
                self.write(decision(b"a%d" % day), decision(b"b", b"c", b"d"), partition=partition, at=at)
                self.write(decision(b"lost"), partition=partition, at=at, commit=False)
                self.write(decision(b"e" * 100), partition=partition, at=at + DAY - 1)

    def wait_settled(self) -> None:
        wait_settled(self.kafka, self.name)

    def archiver(self, folder: str = "", *, settled: bool = True, **options: Any) -> Archiver:
        if settled:
            self.wait_settled()
        return Archiver(
            ArchiveFileSystem(folder or self.folder),
            self.name,
            self.cluster.identity(self.name),
            KafkaBulkLog(self.kafka),
            **options,
        )

    def archive(self, folder: str = "", **options: Any) -> Archived:
        return self.archiver(folder, **options).run()

    def opened(self, folder: str = "") -> ParquetArchive:
        return ParquetArchive(folder or self.folder)

    def archived(self, folder: str = "", start: int = 0) -> list[RawRecord]:
        """What the archive holds, partition by partition."""
        archive = self.opened(folder)
        parts = [OffsetRange(self.name, partition, start, end) for partition, end in archive.ends(self.name).items()]
        return [raw(part, record) for part in parts for records in archive.read(part) for record in records]

    def verified(self) -> Verified:
        return verify_archive(ArchiveFileSystem(self.folder), self.name)

    def trim(self, before: dict[int, int]) -> None:
        """Deletes records as an operator with Kafka's own tools would, without a check."""
        self.cluster.delete_records(self.name, before)

    def records(self, start: int = 0) -> list[RawRecord]:
        """What a reader of the topic sees, partition by partition."""
        return [record for record in committed(self.kafka, self.name) if record.offset >= start]


MakeTopic = Callable[..., Topic]
