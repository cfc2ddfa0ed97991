"""A partition with an open transaction is served once that is over, and never from less than all of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold import names
from leftfold.engine.statemark import MARK, StateMark
from leftfold.envelope import Receipt
from leftfold.kafka.client import KafkaClient
from leftfold.kafka.restore import Restoration, RestorePorts
from leftfold.memory.states import MemoryStates
from leftfold.partitioner import partition_of
from tests.worker.audit import audit
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.load import Sent
from tests.worker.points import Point
from tests.worker.process import Circumstances
from tests.worker.processes import Start
from tests.worker.proxy import Api, Proxy
from tests.worker.running import Running
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

ACCOUNT = "account"
HOME = partition_of(ACCOUNT.encode(), PARTITIONS)


class Rash(Restoration):
    """A restore that trusts the end that read_committed shows, and waits for nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._phase = self._watermarks

    def _ends(self, topic: str, partition: int) -> tuple[int, int]:
        low, stable = self._ports.member.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)
        return low, stable


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


def test_a_restore_waits_for_a_commit_under_way_and_a_rash_one_reads_too_little(
    broker: Broker, proxy: Proxy, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.proxied) as running:
        for number in range(3):
            _send(client, bank, number)
        held = proxy.fault(Api.END_TXN, "hold request")
        client_thread = _sending(client, bank, 3)
        next(client_thread)
        held.wait_caught()
        ports = running.shop.restore_ports(running.worker._member)
        rash = Rash(bank.app, bank.name, [HOME], MemoryStates, ports)
        careful = Restoration(bank.app, bank.name, [HOME], MemoryStates, ports)
        assert not rash.step()
        assert not careful.step()
        held.release()
        assert (_version(rash), _version(careful)) == (3, 4)
