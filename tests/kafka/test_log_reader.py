"""The log reader against a real broker: only committed records, true ends, and no gap is ever skipped."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold.errors import InfrastructureError
from leftfold.kafka.log_reader import KafkaLogReader, reader_config
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord
from tests.kafka.conftest import MakeTopic, read_to
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers


@dataclass
class Log:
    """A topic of two partitions, what is written to it, and a reader of it."""

    kafka: KafkaSettings
    topic: str
    reader: KafkaLogReader

    def transactional(self) -> Producer:
        """A producer with an open transaction."""
        producer = Producer({**self.kafka.librdkafka(), "transactional.id": uuid4().hex})
        producer.init_transactions(WAIT_SECONDS)
        producer.begin_transaction()
        return producer

    def open_one(self) -> Producer:
        """An open transaction with one record."""
        producer = self.transactional()
        producer.produce(self.topic, b"open", b"k", 0)
        producer.flush(WAIT_SECONDS)
        return producer

    def write(self, *values: bytes, partition: int = 0, commit: bool = True) -> None:
        """Writes values in one transaction, and waits for its marker: a commit returns before that is written."""
        offsets: list[Any] = []
        producer = self.transactional()
        for value in values:
            producer.produce(
                self.topic, value, b"k", partition, headers=[("h", value)],
                on_delivery=lambda _, m: offsets.append(m.offset()),
            )  # fmt: skip
        producer.flush(WAIT_SECONDS)
        (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECONDS)
        marker = Position({self.topic: {partition: max(offsets) + 2}})
        with closing(KafkaLogReader(self.kafka)) as reader:
            wait_until(lambda: reader.ends([self.topic]).covers(marker), "the marker of the transaction")

    def at(self, offset: int, partition: int = 0) -> Position:
        """A position in one partition."""
        return Position({self.topic: {partition: offset}})

    def read(self, start: int, end: int, partition: int = 0) -> list[RawRecord]:
        """Reads one partition from an offset to another."""
        self.reader.seek(self.at(start, partition))
        return read_to(self.reader, end)


@pytest.fixture
def log(kafka: KafkaSettings, make_topic: MakeTopic) -> Iterator[Log]:
    """An empty topic."""
    with closing(KafkaLogReader(kafka)) as reader:
        yield Log(kafka, make_topic(2), reader)


def test_records_come_as_they_stand_in_the_log(log: Log) -> None:
    producer = Producer(log.kafka.librdkafka())
    producer.produce(log.topic, b"v", b"k", 0, headers=[("a", b"1"), ("b", b"")], timestamp=1_000)
    producer.produce(log.topic, None, None, 0)
    producer.flush(WAIT_SECONDS)
    first, second = log.read(0, 2)
    assert first == RawRecord(log.topic, 0, 0, b"k", b"v", [("a", b"1"), ("b", b"")], 1_000)
    assert (second.key, second.value, tuple(second.headers)) == (None, None, ())


def test_aborted_records_are_seen_by_no_reader_whose_position_passes_them(log: Log) -> None:
    """The twin reads what is not committed."""
    log.write(b"1", b"2")
    log.write(b"lost", commit=False)
    records = log.read(0, 5)
    assert [(record.offset, record.value) for record in records] == [(0, b"1"), (1, b"2")]
    assert log.reader.position() == log.at(5) == log.reader.ends([log.topic]).only([log.topic], 0)
    config = {**reader_config(log.kafka), "isolation.level": "read_uncommitted", "enable.partition.eof": False}
    consumer = Consumer(config)
    consumer.assign([TopicPartition(log.topic, 0, 3)])
    wait_until(lambda: [m.value() for m in consumer.consume(1, 0.1)] == [b"lost"], "the aborted record")
    consumer.close()


def test_ends_are_behind_open_transactions(log: Log) -> None:
    log.write(b"1")
    open_one = log.open_one()
    assert log.reader.ends([log.topic]) == Position({log.topic: {0: 3, 1: 0}})
    # The twin: what a reader of committed records takes for the end leaves out the open transaction.
    stable = log.reader._consumer.get_watermark_offsets(TopicPartition(log.topic, 0), timeout=WAIT_SECONDS)
    assert stable == (0, 2)
    open_one.abort_transaction(WAIT_SECONDS)


def test_an_open_transaction_holds_back_what_comes_behind_it(log: Log) -> None:
    open_one = log.open_one()
    log.write(b"behind")
    log.reader.seek(log.at(0))
    assert log.reader.poll(10, 0.3) == []
    assert log.reader.position() == log.at(0)
    open_one.commit_transaction(WAIT_SECONDS)
    assert [record.value for record in read_to(log.reader, 4)] == [b"open", b"behind"]


def test_a_reader_takes_no_more_than_its_limit_and_reads_from_wherever_it_seeks(log: Log) -> None:
    log.write(*[b"%d" % n for n in range(20)])
    log.write(b"there", partition=1)
    log.reader.seek(log.at(10))
    for limit in (1, 7):
        records: list[RawRecord] = []
        while not records:
            records = log.reader.poll(limit, 5.0)
        assert len(records) <= limit
    assert [record.offset for record in read_to(log.reader, 21)][-1] == 19
    assert [record.offset for record in log.read(18, 21)] == [18, 19]
    assert [(r.partition, r.offset) for r in log.read(0, 2, 1)] == [(1, 0)]
    assert log.reader.position() == log.at(2, 1)


def test_deleted_records_are_a_gap_and_not_skipped(log: Log) -> None:
    log.write(*[b"%d" % n for n in range(10)])
    # The answer never comes if the client that asked for it is deleted.
    admin = AdminClient(log.kafka.librdkafka())
    for future in admin.delete_records([TopicPartition(log.topic, 0, 6)]).values():
        future.result(WAIT_SECONDS)
    with pytest.raises(InfrastructureError, match=r"gap in the log: .*\[0\] no longer holds offsets 2 to 5"):
        log.read(2, 11)
    with pytest.raises(InfrastructureError, match="gap in the log"):
        log.reader.poll(10, 0)
    assert [record.offset for record in log.read(6, 11)] == [6, 7, 8, 9]


def test_a_log_shorter_than_the_position_is_a_gap(log: Log) -> None:
    log.write(b"1")
    with pytest.raises(InfrastructureError, match=r"from 500, but holds 0 to 2; it is shorter than it was"):
        log.read(500, 501)


def test_topics_that_are_missing_or_deleted_are_named(log: Log) -> None:
    assert log.reader.partitions(log.topic) == 2
    for ask in (lambda: log.reader.partitions("nothing.events"), lambda: log.reader.ends(["nothing.events"])):
        with pytest.raises(InfrastructureError, match=r"topic nothing\.events does not exist"):
            ask()
    log.write(b"1")
    admin = AdminClient(log.kafka.librdkafka())
    admin.delete_topics([log.topic])[log.topic].result(WAIT_SECONDS)
    with pytest.raises(InfrastructureError, match=rf"topic {log.topic} was deleted"):
        log.read(0, 2)


def test_a_closed_reader_ends_with_its_clients_and_threads_before_any_garbage_collection() -> None:
    reader = KafkaLogReader(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    ended = weakref.ref(reader)
    gc.disable()
    try:
        reader.close()
        del reader
        assert ended() is None, "a reference cycle keeps its admin client with six threads"
    finally:
        gc.enable()
