"""A worker that is no member of its group any more commits nothing."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from leftfold.errors import InfrastructureError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.worker.clients import gap_of_commands
from leftfold.model import keys as names
from tests.waiting import wait_until
from tests.worker.broker import Broker
from tests.worker.running import Running


def test_metadata_without_a_generation_are_not_used() -> None:
    member = GroupMember(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "group", ["topic"], lambda *left: None, gap_of_commands
    )
    try:
        assert bytes(member.consumer.consumer_group_metadata()).startswith(b"CGMDv2:\xff\xff\xff\xff")
        assert member.metadata() is None
    finally:
        member.close()


@pytest.mark.servers
def test_a_transaction_without_membership_is_aborted_and_decided_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, lost, metadata = broker.bank(partitions=1), [True, False], GroupMember.metadata

    def once(member: GroupMember) -> Any:
        return None if lost and lost.pop(0) else metadata(member)

    monkeypatch.setattr(GroupMember, "metadata", once)
    with KafkaClient(bank.name, broker.settings) as client, Running(bank, broker.distant) as running:
        client.send(bank.deposit("account"), timeout=240.0)
        assert running.worker.counts["aborted"] == 1
        assert "left its group" in running.reports.of("transaction aborted")[0]["why"]
    assert len(broker.settled(names.events(bank.name))) == 1


class _Given:
    """A consumer that has these messages."""

    def __init__(self, *messages: Any) -> None:
        self._messages = list(messages)

    def poll(self, wait: float) -> Any:
        return self._messages.pop(0) if self._messages else None

    def consume(self, count: int, wait: float) -> list[Any]:
        found, self._messages = self._messages[:count], self._messages[count:]
        return found

    def close(self) -> None:
        self._messages.clear()


def test_what_was_fetched_before_a_hole_is_decided_before_the_worker_ends() -> None:
    member = GroupMember(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "group", ["topic"], lambda *left: None, gap_of_commands
    )
    member.close()
    gap = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no such offset")
    fetched = [Message(topic="topic", partition=0, offset=offset, value=b"v") for offset in (3, 4)]
    early, late = (Message(topic="topic", partition=0, offset=offset, error=gap) for offset in (0, 5))
    given: Any = _Given(early, *fetched, late)
    member.consumer, member._served = given, {("topic", 0): 3}
    assert member.fetch(10, 0.0) == fetched, "a fetch at 0, before it was known where to go on, is no gap"
    member.put_back(fetched[1:])
    assert member.fetch(10, 0.0) == fetched[1:]
    with pytest.raises(InfrastructureError, match=r"topic\[0\] does not hold offset 5, which comes next"):
        member.fetch(10, 0.0)


class _Hasty(GroupMember):
    """One whose new partitions are fetched from 0 before they are paused."""

    codes: list[int]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        super()._assigned(consumer, partitions)
        consumer.resume(partitions)

    def _usable(self, message: Message) -> bool:
        error = message.error()
        self.codes += [error.code()] if error is not None else []
        return super()._usable(message)


@pytest.mark.servers
def test_a_new_partition_that_is_fetched_too_early_is_served_where_its_topic_begins_later(broker: Broker) -> None:
    bank = broker.bank(partitions=1)
    topic = names.commands(bank.name)
    producer = broker.producer()
    for number in range(9):
        producer.produce(topic, b"%d" % number, b"k", 0)
    assert producer.flush(240.0) == 0
    broker.wipe(topic, {0: 6})
    member = _Hasty(broker.settings.librdkafka(), bank.group, [topic], lambda *left: None, gap_of_commands)
    member.codes, found = [], list[Any]()

    def fetch() -> bool:
        found.extend(member.fetch(10, 0.05))
        return len(found) == 3

    try:
        wait_until(lambda: not member.fetch(10, 0.05) and bool(member.codes), "a refusal")
        assert (member.codes, member.new) == ([KafkaError._AUTO_OFFSET_RESET], {(topic, 0)})
        for _ in range(2):  # the twin: it is given up, and no seek starts it again
            with pytest.raises(KafkaException, match="_STATE"):
                member.consumer.seek(TopicPartition(topic, 0, 6))
        assert not member.serve((topic, 0), 6)
        wait_until(lambda: member.serve((topic, 0), 6), "its start")
        wait_until(fetch, "what it holds")
    finally:
        member.close()
    assert [message.offset() for message in found] == [6, 7, 8]
