"""The log reader against a real broker: only committed records, true ends, and no gap is ever skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.log_reader import KafkaLogReader, reader_config
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import embedded, kill, restart
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord
from tests.kafka.conftest import MakeTopic, read_to
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def reader(kafka: KafkaSettings) -> Iterator[KafkaLogReader]:
    """A reader of that broker."""
    reader = KafkaLogReader(kafka)
    yield reader
    reader.close()


def transactional(settings: KafkaSettings) -> Producer:
    """A producer whose transactions may begin."""
    producer = Producer({**settings.librdkafka(), "transactional.id": uuid4().hex})
    producer.init_transactions(20)
    return producer


def write(settings: KafkaSettings, topic: str, values: list[bytes], *, partition: int = 0, commit: bool = True) -> None:
    """Writes values in one transaction, and waits for its marker: a commit returns before that is written."""
    offsets: list[Any] = []
    producer = transactional(settings)
    producer.begin_transaction()
    for value in values:
        producer.produce(
            topic, value, b"k", partition, headers=[("h", value)], on_delivery=lambda _, m: offsets.append(m.offset())
        )
    producer.flush(240.0)
    (producer.commit_transaction if commit else producer.abort_transaction)(20)
    marker = Position({topic: {partition: max(offsets) + 2}})
    with closing(KafkaLogReader(settings)) as reader:
        wait_until(lambda: reader.ends([topic]).covers(marker), "the marker of the transaction")


def test_records_come_as_they_stand_in_the_log(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = Producer(kafka.librdkafka())
    producer.produce(topic, b"v", b"k", 0, headers=[("a", b"1"), ("b", b"")], timestamp=1_000)
    producer.produce(topic, None, None, 0)
    producer.flush(240.0)
    reader.seek(Position({topic: {0: 0}}))
    first, second = read_to(reader, 2)
    assert first == RawRecord(topic, 0, 0, b"k", b"v", [("a", b"1"), ("b", b"")], 1_000)
    assert (second.key, second.value, tuple(second.headers)) == (None, None, ())


def test_aborted_records_are_seen_by_no_reader(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(kafka, topic, [b"1", b"2"])
    write(kafka, topic, [b"lost"], commit=False)
    write(kafka, topic, [b"3"])
    reader.seek(Position({topic: {0: 0}}))
    records = read_to(reader, reader.ends([topic]).next_offset(topic, 0))
    assert [record.value for record in records] == [b"1", b"2", b"3"]


def test_a_reader_of_uncommitted_records_sees_aborted_ones(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    topic = make_topic()
    write(kafka, topic, [b"lost"], commit=False)
    consumer = Consumer({**reader_config(kafka), "isolation.level": "read_uncommitted", "enable.partition.eof": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: [m.value() for m in consumer.consume(1, 0.1)] == [b"lost"], "the aborted record")
    consumer.close()


def test_the_position_passes_markers_and_aborted_records_at_the_end(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    write(kafka, topic, [b"1", b"2"])
    write(kafka, topic, [b"lost"], commit=False)
    reader.seek(Position({topic: {0: 0}}))
    records = read_to(reader, 5)
    assert [record.offset for record in records] == [0, 1]
    assert reader.position() == Position({topic: {0: 5}}) == reader.ends([topic]).only([topic], 0)


def test_ends_are_behind_open_transactions(kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    write(kafka, topic, [b"1"])
    open_one = transactional(kafka)
    open_one.begin_transaction()
    open_one.produce(topic, b"open", b"k", 0)
    open_one.flush(240.0)
    assert reader.ends([topic]) == Position({topic: {0: 3, 1: 0}})
    # The twin: what a reader of committed records takes for the end leaves out the open transaction.
    stable = reader._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
    assert stable == (0, 2)
    open_one.abort_transaction(20)


def test_an_open_transaction_holds_back_what_comes_behind_it(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    open_one = transactional(kafka)
    open_one.begin_transaction()
    open_one.produce(topic, b"open", b"k", 0)
    open_one.flush(240.0)
    write(kafka, topic, [b"behind"])
    reader.seek(Position({topic: {0: 0}}))
    assert reader.poll(10, 0.3) == []
    assert reader.position() == Position({topic: {0: 0}})
    open_one.commit_transaction(20)
    assert [record.value for record in read_to(reader, 4)] == [b"open", b"behind"]


def test_no_more_than_the_limit_comes_at_once(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(kafka, topic, [b"%d" % n for n in range(50)])
    reader.seek(Position({topic: {0: 10}}))
    for limit in (1, 7):
        records: list[RawRecord] = []
        while not records:
            records = reader.poll(limit, 5.0)
        assert len(records) <= limit
    assert [record.offset for record in read_to(reader, 51)][-1] == 49


def test_seeking_reads_again_and_elsewhere(kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    for partition in (0, 1):
        write(kafka, topic, [b"%d" % partition] * 3, partition=partition)
    reader.seek(Position({topic: {0: 1}}))
    assert [(r.partition, r.offset) for r in read_to(reader, 4)] == [(0, 1), (0, 2)]
    reader.seek(Position({topic: {1: 2}}))
    assert [(r.partition, r.offset) for r in read_to(reader, 4)] == [(1, 2)]
    assert reader.position() == Position({topic: {1: 4}})


def test_deleted_records_are_a_gap_and_not_skipped(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(kafka, topic, [b"%d" % n for n in range(10)])
    # The answer never comes if the client that asked for it is gone.
    admin = AdminClient(kafka.librdkafka())
    for future in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        future.result(240.0)
    reader.seek(Position({topic: {0: 2}}))
    with pytest.raises(InfrastructureError, match=r"hole in the log: .*\[0\] no longer holds offsets 2 to 5"):
        read_to(reader, 11)
    with pytest.raises(InfrastructureError, match="hole in the log"):
        reader.poll(10, 0)
    reader.seek(Position({topic: {0: 6}}))
    assert [record.offset for record in read_to(reader, 11)] == [6, 7, 8, 9]


def test_a_log_shorter_than_the_position_is_a_gap(
    kafka: KafkaSettings, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(kafka, topic, [b"1"])
    reader.seek(Position({topic: {0: 500}}))
    with pytest.raises(InfrastructureError, match=r"from 500, but holds 0 to 2; it is shorter than it was"):
        read_to(reader, 501)


def test_partition_counts_and_missing_topics(reader: KafkaLogReader, make_topic: MakeTopic) -> None:
    assert reader.partitions(make_topic(5)) == 5
    with pytest.raises(InfrastructureError, match=r"topic nothing\.events does not exist"):
        reader.partitions("nothing.events")
    with pytest.raises(InfrastructureError, match=r"topic nothing\.events does not exist"):
        reader.ends(["nothing.events"])


def test_a_deleted_topic_is_an_error(
    kafka: KafkaSettings, cluster: ClusterAdmin, reader: KafkaLogReader, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    write(kafka, topic, [b"1"])
    admin = AdminClient(kafka.librdkafka())
    admin.delete_topics([topic])[topic].result(240.0)
    reader.seek(Position({topic: {0: 0}}))
    with pytest.raises(InfrastructureError, match=rf"topic {topic} was deleted"):
        read_to(reader, 2)


def test_a_lost_broker_is_waited_for(tmp_path: Path) -> None:
    with embedded(tmp_path, want=frozenset({"kafka"})) as servers:
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        ClusterAdmin(settings).create("log.events", 1, 1, {})
        write(settings, "log.events", [b"1"])
        reader = KafkaLogReader(settings)
        reader.seek(Position({"log.events": {0: 0}}))
        assert [record.value for record in read_to(reader, 2)] == [b"1"]
        assert reader.trouble == ""
        kill(tmp_path, "kafka")
        wait_until(lambda: reader.poll(10, 0.1) == [] and reader.trouble != "", "the reader to notice")
        restart(tmp_path, "kafka")
        wait_until(lambda: reader.poll(10, 0.1) == [] and reader.trouble == "", "the reader to recover")
        write(settings, "log.events", [b"2"])
        assert [record.value for record in read_to(reader, 4)] == [b"2"]
        reader.close()
