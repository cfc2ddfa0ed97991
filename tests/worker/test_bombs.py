"""Batches that nobody can unpack: small on the wire, hundreds of MB when unpacked; brokers look at the wire only."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.group_member import GroupMember
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.records import raw
from leftfold.kafka.worker.clients import gap_of_commands
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.codec import UNREADABLE, header
from leftfold.ports.protocols import RawRecord
from tests.waiting import wait_until
from tests.worker import bank as bank_module
from tests.worker.bank import PARTITIONS
from tests.worker.broker import Broker
from tests.worker.conftest import Typing
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNTS = {partition_of(name.encode(), PARTITIONS): name for name in map(str, range(40))}
HIT = 1


def test_topics_of_ours_take_no_bomb(broker: Broker) -> None:
    one = broker.bank()
    for topic in (names.commands(one.name), names.events(one.name), names.replies(one.name)):
        errors: list[KafkaError | None] = []
        producer = broker.producer(compression_type="zstd", message_max_bytes=1_000_000_000)
        producer.produce(topic, bytes(2_000_000), b"k", 0, on_delivery=lambda error, _: errors.append(error))  # noqa: B023  # called below
        assert producer.flush(240.0) == 0
        assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize("records", [1, pytest.param(300, marks=pytest.mark.faults)])
def test_a_batch_that_cannot_be_unpacked_is_one_dead_letter_and_the_commands_behind_it_are_decided(
    broker: Broker, records: int, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain consumer is the twin: it meets the same batch again and again."""
    one = broker.bank()
    monkeypatch.setattr(bank_module, "app", one.app, raising=False)
    topic = names.commands(one.name)
    broker.alter(topic, compression_type="producer")
    with KafkaClient(one.name, broker.settings) as client:
        with Running(one, broker.distant) as running:
            assert client.send(one.deposit(ACCOUNTS[HIT]), timeout=240.0).version == 1
            base = broker.bomb(topic, HIT, records=records)
            for account in ACCOUNTS.values():
                client.send(one.deposit(account), timeout=240.0)
            assert "a batch of offsets" in running.told("dead letters")[0]["why"]
        with Running(one, broker.distant):
            assert client.send(one.deposit(ACCOUNTS[HIT]), timeout=240.0).version == 3
    (letter,) = broker.settled(names.dead(one.name))
    assert header(letter.headers, "dead_source") == f"{topic}/{HIT}/{base + records - 1}".encode()
    reason = header(letter.headers, "dead_reason").decode()
    where = f"{topic}[{HIT}]: a batch of offsets {base} to {base + records - 1}: "
    assert where in reason
    said = typed("status")[1]
    assert re.search(rf"1 dead letter, the last one .+ ago: {re.escape(where)}", said), said
    assert f"leftfold dead list {one.name}" in said
    twin = Consumer({**broker.settings.librdkafka(), "group.id": "twin", "auto.offset.reset": "error"})
    twin.assign([TopicPartition(topic, HIT, base)])
    for _ in range(2):
        message = twin.poll(240.0)
        assert message is not None
        assert (message.offset(), getattr(message.error(), "code", int)()) == (base, KafkaError._BAD_COMPRESSION)
    twin.close()


def test_readers_go_on_behind_such_a_batch(broker: Broker) -> None:
    one = broker.bank()
    topic = names.events(one.name)
    broker.alter(topic, compression_type="producer")
    producer = broker.producer()
    for number in range(2):
        producer.produce(topic, b"%d" % number, b"k", 0)
        assert producer.flush(240.0) == 0
        if not number:
            broker.bomb(topic, 0, records=3)
    reader, found = KafkaLogReader(broker.settings), list[RawRecord]()

    def read() -> bool:
        found.extend(reader.poll(10, 0.1))
        return len(found) > 2

    try:
        reader.seek(Position.at(topic, 0, 0))
        wait_until(read, "three records")
    finally:
        reader.close()
    assert [(record.offset, record.value) for record in found] == [(0, b"0"), (3, None), (4, b"1")]
    assert b"a batch of offsets 1 to 3: " in header(found[1].headers, UNREADABLE)
    member = GroupMember(
        broker.settings.librdkafka(), f"{one.name}.shared", [topic], lambda *left: None, gap_of_commands
    )
    fetched = list[RawRecord]()

    def fetch() -> bool:
        fetched.extend(map(raw, member.fetch(10, 0.1)))
        for place in sorted(member.new):
            member.serve(place, 0)
        return len(fetched) > 2

    try:
        wait_until(fetch, "three records of a member")
    finally:
        member.close()
    assert [(record.offset, record.value) for record in fetched] == [(0, b"0"), (3, None), (4, b"1")]
    log = KafkaBulkLog(broker.settings)
    try:
        messages = [message for some in log.read(OffsetRange(topic, 0, 0, 5)) for message in some]
    finally:
        log.close()
    assert [(message.offset(), message.value()) for message in messages] == [(0, b"0"), (3, None), (4, b"1")]


def test_answers_behind_such_a_batch_reach_the_client(broker: Broker) -> None:
    one = broker.bank()
    topic = names.replies(one.name)
    broker.alter(topic, compression_type="producer")
    with KafkaClient(one.name, broker.settings) as client, Running(one, broker.distant):
        for partition in range(PARTITIONS):
            broker.bomb(topic, partition)
        assert client.send(one.deposit("account"), timeout=240.0).version == 1
