"""Events whose transaction a broker forgot, and that were aborted with the one that should have ended it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.processing.stream_state import MARK, SETTLED, SETTLING, ChangelogCheckpoint
from leftfold.engine.processing.worker_tasks import CommandTask
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.aborted_records import lost_records, read_settling
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.model import keys as names
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord
from tests.settled import wait_settled
from tests.waiting import WAIT_SECONDS
from tests.worker.bank import Bank
from tests.worker.broker import Broker
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
    with Running(bank, broker.distant):
        send(client, bank, 5)
    kept, commands = events(broker, bank), checkpoint(broker, bank).commands
    remake(broker, bank, names.events(bank.name))
    abort(broker, bank, kept, 3, is_noted=is_noted)
    for number in range(2):
        # All events are folded, so the second worker meets the note, too.
        write(broker.producer(), bank.state, MARK, ChangelogCheckpoint(commands).encode())
        with Running(bank, broker.distant) as running:
            send(client, bank, 1, first=50 + number)
            assert bool(running.reports.of("lost records are written again")) is (is_noted and number == 0)
    found = events(broker, bank)
    least = 5 if is_noted else 3
    assert [ids(record) for record in found[:least]] == [ids(record) for record in kept[:least]]
    versions = Counter(int(header(record.headers, "ce_sequence")) for record in found)
    assert versions == Counter({*range(1, 8)} - ({4, 5} if not is_noted else set()))


@pytest.mark.parametrize("is_ended", [True, False], ids=["", "twin"])
def test_what_a_stranger_aborted_is_not_written_for_a_note_whose_transaction_ended(
    broker: Broker, bank: Bank, client: KafkaClient, is_ended: bool
) -> None:
    """A worker that wakes late writes events again that others have decided, and is refused its offsets."""
    with Running(bank, broker.distant):
        send(client, bank, 5)
    kept, commands = events(broker, bank), checkpoint(broker, bank).commands
    remake(broker, bank, names.events(bank.name))
    end_with_a_stranger(broker, bank, kept, is_ended=is_ended)
    write(broker.producer(), bank.state, MARK, ChangelogCheckpoint(commands).encode())
    with Running(bank, broker.distant) as running:
        send(client, bank, 1, first=50)
        assert bool(running.reports.of("lost records are written again")) is not is_ended
    versions = [int(header(record.headers, "ce_sequence")) for record in events(broker, bank)]
    assert sorted(versions) == [1, 2, 3, 4, 5, 6] if is_ended else [1, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("state", "stranger", "noted"),
    [
        ("open", "", {"events", "state"}),
        ("open", "with a checkpoint", set()),
        ("committed", "", {"events"}),
        ("committed", "with a checkpoint", set()),
        ("before other events", "alone", set()),
    ],
)
def test_only_what_is_the_writers_alone_is_noted(
    broker: Broker, bank: Bank, state: str, stranger: str, noted: set[str]
) -> None:
    events, writer = names.events(bank.name), f"writer.{bank.name}"
    producer, other = broker.producer(transactional_id=writer), broker.producer(transactional_id=f"other.{bank.name}")
    notes = list[Outgoing]()
    for one in (producer, other):
        one.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    write(producer, bank.state, MARK, ChangelogCheckpoint(7, 0, writer).encode())
    if state == "before other events":
        write(producer, events, b"k", b"before")
    if state != "open":
        producer.commit_transaction(WAIT_SECONDS)
        wait_settled(broker.settings, bank.state)
        wait_settled(broker.settings, events)
        producer.begin_transaction()
    if stranger != "alone":
        write(producer, events, b"k", b"event")
    if stranger:
        other.begin_transaction()
        write(other, events, b"k", b"of a stranger")
        if stranger == "with a checkpoint":
            write(other, bank.state, MARK, ChangelogCheckpoint(6, 0, f"other.{bank.name}").encode())
            other.abort_transaction(WAIT_SECONDS)
            if state != "open":
                wait_settled(broker.settings, bank.state)
    with hanging_of(broker, bank) as hanging:
        hung = hanging._whole(writer, [0])
        assert hung.places
        hanging._note(hung, hung.places, lambda topic, out: notes.append(out))
    found = [read_settling(RawRecord(events, out.partition, 9, out.key, out.value, out.headers)) for out in notes]
    topics = {"events": events, "state": bank.state}
    assert [set(spans) for spans in found] == ([{topics[one] for one in noted}] if noted else [])


@pytest.mark.parametrize("is_prepared", [True, False], ids=["", "twin"])
def test_the_writer_of_an_aborted_checkpoint_is_found_where_its_last_transaction_hangs(
    broker: Broker, bank: Bank, is_prepared: bool
) -> None:
    """A broker that forgets an abort may have ended it on the state: nothing open names the writer then."""
    events = names.events(bank.name)
    writers = [f"{name}.{bank.name}" for name in ("first", "second", "third")]
    first, second, third = (broker.producer(transactional_id=writer) for writer in writers)
    for producer in (first, second, third):
        producer.init_transactions(WAIT_SECONDS)
        producer.begin_transaction()
    for producer, writer in ((first, writers[0]), (second, writers[1])):
        write(producer, bank.state, MARK, ChangelogCheckpoint(7, 0, writer).encode())
    if is_prepared:
        write(second, events, b"k", b"event")
    first.commit_transaction(WAIT_SECONDS)
    second.abort_transaction(WAIT_SECONDS)
    for topic in (bank.state, events):
        wait_settled(broker.settings, topic)
    write(third, events, b"k", b"what hangs")
    with hanging_of(broker, bank) as hanging:
        assert hanging._hung([0]).keys() == {writers[0], *writers[1:2] * is_prepared}


def test_each_lost_dead_letter_is_found_by_its_source_and_no_mark_of_an_operator(broker: Broker, bank: Bank) -> None:
    topic = names.dead(bank.name)
    writer = broker.producer(transactional_id=f"dead.{bank.name}")
    writer.init_transactions(WAIT_SECONDS)
    same = ("ce_id", b"one-id")
    writer.begin_transaction()
    for source in (b"a/0/1", b"a/0/2", b"a/0/3"):
        write(writer, topic, b"k", source, [same, ("dead_source", source)])
    write(writer, topic, b"k", b"mark", [("dead_handled", b"0")])
    writer.abort_transaction(WAIT_SECONDS)
    wait_settled(broker.settings, topic)
    write(broker.producer(), topic, b"k", b"since", [same, ("dead_source", b"a/0/2")])
    with hanging_of(broker, bank) as hanging:
        spans = [(topic, (0, 4, ""))]
        (found,) = lost_records(hanging.stable, hanging.uncommitted, 0, spans, {})
    assert [out.value for out in found[1]] == [b"a/0/1", b"a/0/3"]


@pytest.mark.parametrize("is_same", [True, False], ids=["", "another"])
def test_an_event_is_not_lost_whose_version_was_written_since(broker: Broker, bank: Bank, is_same: bool) -> None:
    topic = names.events(bank.name)
    writer = broker.producer(transactional_id=f"version.{bank.name}")
    writer.init_transactions(WAIT_SECONDS)
    writer.begin_transaction()
    write(writer, topic, b"k", b"old", [("ce_id", b"old"), ("ce_sequence", b"7")])
    writer.abort_transaction(WAIT_SECONDS)
    wait_settled(broker.settings, topic)
    write(broker.producer(), topic, b"k", b"new", [("ce_id", b"new"), ("ce_sequence", b"7" if is_same else b"8")])
    with hanging_of(broker, bank) as hanging:
        found = lost_records(hanging.stable, hanging.uncommitted, 0, [(topic, (0, 1, ""))], {})
    assert bool(found) is not is_same


@pytest.mark.parametrize("value", ["", "null", "{", "[]", *(f'{{"topic": {span}}}' for span in SPANS)])
def test_a_note_that_anybody_wrote_is_no_note(value: str) -> None:
    record = RawRecord("bank.events", 0, 9, MARK, value.encode(), SETTLING)
    assert read_settling(record) == {}
    note = record._replace(value=b'{"bank.events": [2, 9, "id"]}')
    assert read_settling(note) == {"bank.events": (2, 9, "id")}
    assert read_settling(note._replace(key=b"stream")) == {}
    assert read_settling(note._replace(headers=())) == {}


@contextmanager
def hanging_of(broker: Broker, bank: Bank) -> Iterator[Hanging]:
    """What ends hanging transactions of a bank, with the clients of a worker."""
    with (
        closing(KafkaClientSupplier(broker.settings)) as supplier,
        closing(supplier.member(bank.group, names.commands(bank.name), lambda places, ours: None)) as member,
    ):
        yield supplier.restore_ports(member).hanging(bank.app, CommandTask(bank.decider))


def abort(broker: Broker, bank: Bank, kept: list[RawRecord], most: int, *, is_noted: bool) -> None:
    """Commits the first of these events, and aborts the rest, which may be noted as committed."""
    topic = names.events(bank.name)
    writer, begin = begun(broker, bank, kept[:most])
    for record in kept[most:]:
        write(writer, topic, record.key, record.value, record.headers)
    if is_noted:
        note(broker, topic, begin)
    writer.abort_transaction(WAIT_SECONDS)


def end_with_a_stranger(broker: Broker, bank: Bank, kept: list[RawRecord], *, is_ended: bool) -> None:
    """Commits these events; the last is noted, with one that a stranger has written again and aborts."""
    topic, stranger = names.events(bank.name), broker.producer(transactional_id=f"stranger.{bank.name}")
    stranger.init_transactions(WAIT_SECONDS)
    writer, begin = begun(broker, bank, kept[:-1])
    stranger.begin_transaction()
    for producer, record in ((writer, kept[-1]), (stranger, kept[0])):
        write(producer, topic, record.key, record.value, record.headers)
    note(broker, topic, begin)
    stranger.abort_transaction(WAIT_SECONDS)
    if is_ended:
        write(writer, topic, MARK, b"{}", SETTLED)
    writer.commit_transaction(WAIT_SECONDS)


def begun(broker: Broker, bank: Bank, kept: list[RawRecord]) -> tuple[Producer, int]:
    """A writer that has committed these events and begun its next transaction, and where that begins."""
    topic, writer = names.events(bank.name), broker.producer(transactional_id=f"writer.{bank.name}")
    writer.init_transactions(WAIT_SECONDS)
    writer.begin_transaction()
    for record in kept:
        write(writer, topic, record.key, record.value, record.headers)
    writer.commit_transaction(WAIT_SECONDS)
    begin = len(broker.settled(topic)) + 1
    writer.begin_transaction()
    return writer, begin


def note(broker: Broker, topic: str, begin: int) -> None:
    """Notes as committed what was written since."""
    end = broker.ends(topic, committed=False)[0]
    write(broker.producer(), topic, MARK, json.dumps({topic: (begin, end, "")}).encode(), SETTLING)


def write(producer: Producer, topic: str, key: bytes | None, value: bytes | None, headers: Any = None) -> None:
    producer.produce(topic, value, key, 0, headers=headers and list(headers))
    assert producer.flush(WAIT_SECONDS) == 0


def events(broker: Broker, bank: Bank) -> list[RawRecord]:
    return [record for record in broker.settled(names.events(bank.name)) if record.key != MARK]


def ids(record: RawRecord) -> tuple[bytes, bytes]:
    return header(record.headers, "ce_id"), record.value or b""
