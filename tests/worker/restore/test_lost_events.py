"""Events whose transaction a broker forgot, and that were aborted with the one that should have ended it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.processing.stream_state import MARK, SETTLING, ChangelogCheckpoint
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.hanging_transactions import read_settling
from leftfold.model import keys as names
from leftfold.ports.codec import header
from leftfold.ports.protocols import RawRecord
from tests.worker.bank import Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.restore.test_other_logs import checkpoint, remake, send
from tests.worker.running import Running

pytestmark = pytest.mark.servers

SPANS = "1", '[2, 1, ""]', '[-1, 1, ""]', '[true, 2, ""]', '[1, 2.5, ""]', "[1, 2]", "[1, 2, 3]", '[0, 2000001, ""]'


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank(partitions=1)


@pytest.mark.parametrize("is_noted", [True, False], ids=["", "twin"])
def test_noted_events_are_written_again_once_and_others_are_not(
    broker: Broker, bank: Bank, client: KafkaClient, is_noted: bool
) -> None:
    with Running(bank, broker.address):
        send(client, bank, 5)
    kept, commands = events(broker, bank), checkpoint(broker, bank).commands
    remake(broker, bank, names.events(bank.name))
    abort(broker, bank, kept, 3, is_noted=is_noted)
    for number in range(2):
        # All events are folded, so the second worker meets the note, too.
        write(broker.producer(), bank.state, MARK, ChangelogCheckpoint(commands).encode())
        with Running(bank, broker.address) as running:
            send(client, bank, 1, first=50 + number)
            assert bool(running.told("lost records are written again")) is (is_noted and number == 0)
    found = events(broker, bank)
    least = 5 if is_noted else 3
    assert [ids(record) for record in found[:least]] == [ids(record) for record in kept[:least]]
    versions = Counter(int(header(record.headers, "ce_sequence")) for record in found)
    assert versions == Counter({*range(1, 8)} - ({4, 5} if not is_noted else set()))


@pytest.mark.parametrize("value", ["", "null", "{", "[]", *(f'{{"topic": {span}}}' for span in SPANS)])
def test_a_note_that_anybody_wrote_is_no_note(value: str) -> None:
    record = RawRecord("bank.events", 0, 9, MARK, value.encode(), SETTLING)
    assert read_settling(record) == {}
    note = record._replace(value=b'{"bank.events": [2, 9, "id"]}')
    assert read_settling(note) == {"bank.events": (2, 9, "id")}
    assert read_settling(note._replace(key=b"stream")) == {}
    assert read_settling(note._replace(headers=())) == {}


def abort(broker: Broker, bank: Bank, kept: list[RawRecord], most: int, *, is_noted: bool) -> None:
    """Commits the first of these events, and aborts the rest, which may be noted as committed."""
    topic = names.events(bank.name)
    writer = broker.producer(transactional_id=f"lost.{bank.name}")
    writer.init_transactions(SECONDS)
    writer.begin_transaction()
    for record in kept[:most]:
        write(writer, topic, record.key, record.value, record.headers)
    writer.commit_transaction(SECONDS)
    begin = len(broker.settled(topic)) + 1
    writer.begin_transaction()
    for record in kept[most:]:
        write(writer, topic, record.key, record.value, record.headers)
    end = broker.ends(topic, committed=False)[0]
    if is_noted:
        write(broker.producer(), topic, MARK, json.dumps({topic: (begin, end, "")}).encode(), SETTLING)
    writer.abort_transaction(SECONDS)


def write(producer: Producer, topic: str, key: bytes | None, value: bytes | None, headers: Any = None) -> None:
    producer.produce(topic, value, key, 0, headers=headers and list(headers))
    assert producer.flush(SECONDS) == 0


def events(broker: Broker, bank: Bank) -> list[RawRecord]:
    return [record for record in broker.settled(names.events(bank.name)) if record.key != MARK]


def ids(record: RawRecord) -> tuple[bytes, bytes]:
    return header(record.headers, "ce_id"), record.value or b""
