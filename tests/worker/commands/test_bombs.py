"""Batches that no client can unpack: small on the wire, hundreds of MB when unpacked; brokers look at the wire only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.records import raw
from leftfold.kafka.worker.clients import gap_of_commands
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.message_codec import UNREADABLE, header
from leftfold.ports.protocols import RawRecord
from tests.cli.shell import Typing
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import ACCOUNTS, Bank
from tests.worker.broker import Broker
from tests.worker.running import Running

pytestmark = pytest.mark.servers

HIT = 1


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank(partitions=len(ACCOUNTS))


def test_topics_of_ours_take_no_bomb(broker: Broker, bank: Bank) -> None:
    for topic in (names.commands(bank.name), names.events(bank.name), names.replies(bank.name)):
        errors: list[KafkaError | None] = []
        producer = broker.producer(compression_type="zstd", message_max_bytes=1_000_000_000)
        producer.produce(topic, bytes(2_000_000), b"k", 0, on_delivery=lambda error, _: errors.append(error))  # noqa: B023  # called below
        assert producer.flush(WAIT_SECONDS) == 0
        assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize("records", [1, pytest.param(300, marks=pytest.mark.faults)])
def test_a_batch_that_cannot_be_unpacked_is_one_dead_letter_and_what_is_behind_it_is_decided_and_answered(
    broker: Broker, bank: Bank, client: KafkaClient, records: int, typed: Typing
) -> None:
    """A plain consumer is the twin: it meets the same batch again and again."""
    topic = names.commands(bank.name)
    for one in (topic, names.replies(bank.name)):
        broker.alter(one, compression_type="producer")
    with Running(bank, broker.distant) as running:
        assert client.send(bank.deposit(ACCOUNTS[HIT]), timeout=WAIT_SECONDS).version == 1
        base = broker.bomb(topic, HIT, records=records)
        for partition in ACCOUNTS:
            broker.bomb(names.replies(bank.name), partition)
        for account in ACCOUNTS.values():
            client.send(bank.deposit(account), timeout=WAIT_SECONDS)
        assert "a batch of offsets" in running.reports.of("dead letters")[0]["why"]
    with Running(bank, broker.distant):
        assert client.send(bank.deposit(ACCOUNTS[HIT]), timeout=WAIT_SECONDS).version == 3
    (letter,) = broker.settled(names.dead(bank.name))
    assert header(letter.headers, "dead_source") == f"{topic}/{HIT}/{base + records - 1}".encode()
    where = f"{topic}[{HIT}]: a batch of offsets {base} to {base + records - 1}: "
    assert where in header(letter.headers, "dead_reason").decode()
    said = typed("status").err
    assert re.search(rf"1 dead letter, the last one .+ ago: {re.escape(where)}", said), said
    assert f"leftfold dead list {bank.name}" in said
    twin = Consumer({**broker.settings.librdkafka(), "group.id": "twin", "auto.offset.reset": "error"})
    twin.assign([TopicPartition(topic, HIT, base)])
    for _ in range(2):
        message = twin.poll(WAIT_SECONDS)
        assert message is not None
        assert (message.offset(), getattr(message.error(), "code", int)()) == (base, KafkaError._BAD_COMPRESSION)
    twin.close()


def test_readers_continue_behind_such_a_batch(broker: Broker, bank: Bank) -> None:
    topic, producer = names.events(bank.name), broker.producer()
    broker.alter(topic, compression_type="producer")
    for number in range(2):
        producer.produce(topic, b"%d" % number, b"k", 0)
        assert producer.flush(WAIT_SECONDS) == 0
        if not number:
            broker.bomb(topic, 0, records=3)
    wanted = [(0, b"0"), (3, None), (4, b"1")]
    with closing(KafkaLogReader(broker.settings)) as reader:
        reader.seek(Position.at(topic, 0, 0))
        found = read(lambda: reader.poll(10, 0.1))
    assert [(record.offset, record.value) for record in found] == wanted
    assert b"a batch of offsets 1 to 3: " in header(found[1].headers, UNREADABLE)
    config, group = broker.settings.librdkafka(), f"{bank.name}.shared"
    with closing(GroupMember(config, group, [topic], lambda *left: None, gap_of_commands)) as member:

        def fetch() -> list[RawRecord]:
            fetched = list(map(raw, member.fetch(10, 0.1)))
            for place in sorted(member.new):
                member.serve(place, 0)
            return fetched

        assert [(record.offset, record.value) for record in read(fetch)] == wanted
    with closing(KafkaBulkLog(broker.settings)) as log:
        messages: list[Any] = [message for some in log.read(OffsetRange(topic, 0, 0, 5)) for message in some]
    assert [(message.offset(), message.value()) for message in messages] == wanted


def read(poll: Callable[[], Sequence[RawRecord]]) -> list[RawRecord]:
    """Three records."""
    found: list[RawRecord] = []

    def is_read() -> bool:
        found.extend(poll())
        return len(found) > 2

    wait_until(is_read, "three records")
    return found
