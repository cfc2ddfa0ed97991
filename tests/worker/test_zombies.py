"""A worker that stood still while another took over writes nothing any more."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from leftfold.model import keys as names
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.bank import Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.load import Load
from tests.worker.points import Point
from tests.worker.process import Circumstances
from tests.worker.processes import Start, WorkerProcess

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.mark.parametrize("at", ["fetched", "half produced", "before commit_transaction"])
def test_a_worker_that_wakes_up_after_a_takeover_is_fenced(broker: Broker, start: Start, at: str) -> None:
    bank = broker.bank()
    zombie = start(Circumstances(broker.distant, bank.name, points=(Point(at, do="stop", nth=4),)))
    zombie.wait_serving(4)
    with Load(broker.settings, bank) as load:
        zombie.wait_stopped()
        successor = start(Circumstances(broker.distant, bank.name))
        successor.wait_serving(4)
        load.wait_answered(100)
        _wake(zombie)
        load.wait_answered(100)
    assert audit(broker, bank, load.sent) == []


def _wake(zombie: WorkerProcess) -> None:
    """Either it ends to be started again, or it joins anew and serves what the group gives it."""
    before = len(zombie.told("serving"))
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: zombie.code is not None or len(zombie.told("serving")) > before, lambda: f"an end of {zombie}")
    assert zombie.code in (None, 75), str(zombie)


def test_a_transaction_is_fenced_by_the_offsets_in_it_and_by_nothing_else(broker: Broker) -> None:
    bank = broker.bank()
    events = names.events(bank.name)
    with _member(broker, bank) as zombie:
        stale = zombie.consumer_group_metadata()
        broker_side = broker.producer(transactional_id=f"zombie.{bank.name}")
        broker_side.init_transactions(SECONDS)
        _take_over(broker, bank, zombie)

        broker_side.begin_transaction()
        broker_side.produce(events, b"unfenced", partition=0)
        broker_side.commit_transaction(SECONDS)
        assert [record.value for record in broker.settled(events)] == [b"unfenced"]

        broker_side.begin_transaction()
        broker_side.produce(events, b"fenced", partition=0)
        offset = TopicPartition(names.commands(bank.name), 0, 0, "zombie")
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            broker_side.send_offsets_to_transaction([offset], stale, SECONDS)
        broker_side.abort_transaction(SECONDS)
        assert [record.value for record in broker.settled(events)] == [b"unfenced"]


def test_a_member_that_was_removed_cannot_commit_even_into_an_empty_group(broker: Broker) -> None:
    """An unknown generation would pass there; librdkafka keeps the old one until the loss has been noticed."""
    bank = broker.bank()
    with _member(broker, bank) as zombie:
        successor = _take_over(broker, bank, zombie)
        successor.close()
        producer = broker.producer(transactional_id=f"zombie.{bank.name}")
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        producer.produce(names.events(bank.name), b"late", partition=0)
        offset = TopicPartition(names.commands(bank.name), 0, 0, "zombie")
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            producer.send_offsets_to_transaction([offset], zombie.consumer_group_metadata(), SECONDS)
        with Consumer(_config(broker, bank)) as nobody:
            unknown = nobody.consumer_group_metadata()
        producer.abort_transaction(SECONDS)
        producer.begin_transaction()
        producer.produce(names.events(bank.name), b"of nobody", partition=0)
        producer.send_offsets_to_transaction([offset], unknown, SECONDS)
        producer.commit_transaction(SECONDS)
    assert [record.value for record in broker.settled(names.events(bank.name))] == [b"of nobody"]


@contextmanager
def _member(broker: Broker, bank: Bank) -> Iterator[Consumer]:
    """A member of the group that owns every partition, and then stands still for longer than it may."""
    consumer = Consumer({**_config(broker, bank), "max.poll.interval.ms": 1500})
    try:
        consumer.subscribe([names.commands(bank.name)])
        wait_until(lambda: _owns(consumer, bank), "an assignment")
        yield consumer
    finally:
        consumer.close()


def _take_over(broker: Broker, bank: Bank, zombie: Consumer) -> Consumer:
    """Another member that owns every partition in the end."""
    wait_until(lambda: not zombie.memberid(), "the zombie to be thrown out")
    successor = Consumer(_config(broker, bank))
    successor.subscribe([names.commands(bank.name)])
    wait_until(lambda: _owns(successor, bank), "a takeover")
    return successor


def _owns(consumer: Consumer, bank: Bank) -> bool:
    consumer.poll(0.05)
    return len(consumer.assignment()) == bank.app.partitions


def _config(broker: Broker, bank: Bank) -> dict[str, Any]:
    return {
        **broker.settings.librdkafka(),
        "group.id": bank.group,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 1500,
        "enable.auto.commit": False,
        "log_level": 0,
    }
