"""A partition with an open transaction is served once that is over, and never from less than all of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.recovery import CommandTask, Refold
from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint, MemoryStates
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker import state_restore as restore
from leftfold.kafka.worker.state_restore import Restoration, RestorePorts
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Receipt
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.load import Sent
from tests.worker.process import Circumstances
from tests.worker.processes import Start
from tests.worker.proxy import Api, Proxy
from tests.worker.running import Running

pytestmark = [pytest.mark.servers, pytest.mark.faults]

ACCOUNT = "account"
HOME = partition_of(ACCOUNT.encode(), PARTITIONS)


class Rash(Restoration):
    """A restore that trusts the end that read_committed shows, and waits for nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._phase = self._watermarks

    def _end_hanging(self) -> None:
        pass

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
    with Running(bank, broker.proxied) as running, ThreadPoolExecutor() as senders:
        for number in range(3):
            _send(client, bank, number)
        held = proxy.fault(Api.END_TXN, "hold request")
        fourth = senders.submit(_send, client, bank, 3)
        held.wait_caught()
        ports = _onlooker(broker, bank, running)
        rash = Rash(bank.app, bank.name, [HOME], MemoryStates, ports)
        careful = Restoration(bank.app, bank.name, [HOME], MemoryStates, ports)
        rash_version = _restored_version(rash)
        careful.step()
        held.release()
        fourth.result()
        assert (rash_version, _restored_version(careful)) == (3, 4)


@pytest.mark.parametrize("lands", [True, False])
def test_the_last_commit_of_a_killed_worker_lands_or_is_decided_again(
    broker: Broker, proxy: Proxy, start: Start, bank: Bank, client: KafkaClient, lands: bool
) -> None:
    killed = start(Circumstances(broker.proxied, bank.name))
    killed.wait_serving(PARTITIONS)
    sent = [_send(client, bank, number) for number in range(3)]
    held = proxy.fault(Api.END_TXN, "hold request", times=99)
    with ThreadPoolExecutor() as senders:
        fourth = senders.submit(_send, client, bank, 3)
        held.wait_caught()
        killed.signal(signal.SIGKILL)
        if lands:
            held.release()
            held.wait_replies()
        with Running(bank, broker.distant) as running:
            if not lands:
                wait_until(lambda: running.worker.counts["accepted"] == 1, "the fourth command")
                held.release()
                held.wait_replies()
            sent += [_send(client, bank, 3), _send(client, bank, 4)]
            counts = running.worker.counts
        del fourth
    assert counts["accepted"] == (1 if lands else 2)
    assert [one.answer.version for one in sent if isinstance(one.answer, Receipt)] == [1, 2, 3, 4, 5]
    assert audit(broker, bank, sent) == []


def test_a_transaction_that_a_dead_writer_left_open_is_ended_at_once(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        sent = [_send(client, bank, number) for number in range(3)]
    # Longer than tests wait, and than a restore does without getting anywhere.
    dead = _left_open(broker, bank, f"dead.{bank.name}", checkpoint=True, timeout_ms=900_000)
    with Running(bank, broker.distant):
        sent.append(_send(client, bank, 3))
    with pytest.raises(KafkaException, match="_FENCED"):
        dead.commit_transaction(SECONDS)
    assert audit(broker, bank, sent) == []


def test_a_transaction_that_is_open_on_events_alone_is_waited_for(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        sent = [_send(client, bank, number) for number in range(3)]
    _left_open(broker, bank, f"dead.{bank.name}", checkpoint=False, timeout_ms=3000)
    with Running(bank, broker.distant):
        assert broker.ends(names.events(bank.name), committed=True) == broker.ends(
            names.events(bank.name), committed=False
        )
        sent.append(_send(client, bank, 3))
    assert audit(broker, bank, sent) == []


def test_an_offset_alone_that_is_not_stable_ends_no_transaction_until_it_is_overdue(
    broker: Broker, bank: Bank, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that is slow looks the same; here somebody's transaction holds nothing but an offset."""
    ahead = [0.0]
    monkeypatch.setattr(restore, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))
    with Running(bank, broker.address) as running:
        _send(client, bank, 0)
        other = broker.producer(transactional_id=f"other.{bank.name}")
        other.init_transactions(SECONDS)
        other.begin_transaction()
        with Consumer({**broker.settings.librdkafka(), "group.id": bank.group}) as nobody:
            offset = TopicPartition(names.commands(bank.name), HOME, 1, "other")
            other.send_offsets_to_transaction([offset], nobody.consumer_group_metadata(), SECONDS)
        ports = _onlooker(broker, bank, running)
        restoration = Restoration(bank.app, bank.name, [HOME], MemoryStates, ports)
        for seconds in (0.0, 5.0):
            ahead[0] += seconds
            assert not restoration.step()
        _send(client, bank, 1)
        hanging, owner = ports.hanging(bank.app, CommandTask(bank.decider)), running.worker._transactions.id
        assert hanging.end([HOME], overdue=False) == []
        wait_until(
            lambda: owner in hanging._hung([HOME]), "the owner, who is taken for the one that hangs when overdue"
        )
        other.abort_transaction(SECONDS)
    restoration.close()


def _onlooker(broker: Broker, bank: Bank, running: Running) -> RestorePorts:
    """What a successor would restore with; consumers of its own, since two threads that share one block each other."""
    config = {
        **broker.settings.librdkafka(),
        "group.id": bank.group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    return replace(
        running.shop.restore_ports(running.worker._member),
        member=Consumer({**config, "isolation.level": "read_committed"}),
        stable=Consumer({**config, "isolation.level": "read_committed"}),
        uncommitted=Consumer({**config, "isolation.level": "read_uncommitted"}),
    )


def _left_open(broker: Broker, bank: Bank, id_: str, *, checkpoint: bool, timeout_ms: int) -> Producer:
    """Somebody's transaction with an event, and perhaps a state and an offset, that he neither commits nor aborts."""
    producer = broker.producer(transactional_id=id_, transaction_timeout_ms=timeout_ms)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(names.events(bank.name), b"of the dead", ACCOUNT, HOME)
    if checkpoint:
        producer.produce(bank.state, ChangelogCheckpoint(99, 99, id_).encode(), MARK, HOME)
        producer.produce(bank.state, b"of the dead", ACCOUNT, HOME)
        producer.flush(SECONDS)
        with Consumer({**broker.settings.librdkafka(), "group.id": bank.group}) as nobody:
            offset = TopicPartition(names.commands(bank.name), HOME, 99, "dead")
            producer.send_offsets_to_transaction([offset], nobody.consumer_group_metadata(), SECONDS)
    producer.flush(SECONDS)
    return producer


def _restored_version(restoration: Restoration) -> int:
    wait_until(restoration.step, "a restore")
    restoration.close()
    refold = restoration.found[HOME].refold
    assert isinstance(refold, Refold)
    return refold.stream(ACCOUNT).version


def _send(client: KafkaClient, bank: Bank, number: int) -> Sent:
    sent = Sent(f"id-{number}", ACCOUNT, bank.deposit(ACCOUNT, number), 1)
    sent.answer = client.send(sent.command, id=sent.id, timeout=240.0)
    return sent
