"""A worker that is no member of its group any more commits nothing."""

from __future__ import annotations

from typing import Any

import pytest

from leftfold import names
from leftfold.kafka.client import KafkaClient
from leftfold.kafka.member import Member
from tests.worker.broker import Broker
from tests.worker.running import Running


def test_metadata_without_a_generation_are_not_used() -> None:
    member = Member(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "group", "topic", lambda partitions, ours: None
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
    bank, lost, metadata = broker.bank(partitions=1), [True, False], Member.metadata

    def once(member: Member) -> Any:
        return None if lost and lost.pop(0) else metadata(member)

    monkeypatch.setattr(Member, "metadata", once)
    with KafkaClient(bank.name, broker.settings) as client, Running(bank, broker.address) as running:
        client.send(bank.deposit("account"), timeout=240.0)
        assert running.worker.counts["aborted"] == 1
        assert "left its group" in running.told("transaction aborted")[0]["why"]
    assert len(broker.settled(names.events(bank.name))) == 1
