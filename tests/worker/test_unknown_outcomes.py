"""A commit that nobody knows the outcome of is looked up, never assumed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException

from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Receipt
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.load import Sent
from tests.worker.proxy import Api, Proxy
from tests.worker.running import Running
from tests.worker.shop import Haste

pytestmark = [pytest.mark.servers, pytest.mark.faults]

ACCOUNT = "account"
HASTY = Haste(socket=2000, call=6.0, transaction=60_000, session=30_000)


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


def test_a_commit_that_happened_unheard_is_applied_once(
    broker: Broker, proxy: Proxy, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.proxied, haste=HASTY) as running, ThreadPoolExecutor() as senders:
        sent = [_send(client, bank, 1)]
        unheard = proxy.fault(Api.END_TXN, "drop reply", times=99)
        second = senders.submit(_send, client, bank, 2)
        _wait_unknown(running)
        unheard.release()
        sent += [second.result(), _send(client, bank, 3)]
        counts = running.worker.counts
    assert (counts["unknown"], counts["aborted"], counts["accepted"], counts["duplicates"]) == (1, 0, 3, 0)
    assert _versions(sent) == [1, 2, 3]
    assert audit(broker, bank, sent) == []


def test_a_commit_that_did_not_happen_is_decided_again(
    broker: Broker, proxy: Proxy, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.proxied, haste=HASTY) as running, ThreadPoolExecutor() as senders:
        sent = [_send(client, bank, 1)]
        held = proxy.fault(Api.END_TXN, "hold request", times=99)
        second = senders.submit(_send, client, bank, 2)
        _wait_unknown(running)
        held.release()
        sent += [second.result(), _send(client, bank, 3)]
        held.wait_replies(held.caught)
        counts = running.worker.counts
    assert (counts["unknown"], counts["aborted"], counts["accepted"], counts["duplicates"]) == (1, 1, 3, 0)
    assert _versions(sent) == [1, 2, 3]
    assert audit(broker, bank, sent) == []


@pytest.mark.parametrize("token", ["another", "the same"])
def test_a_partition_that_somebody_else_committed_meanwhile_is_restored(
    broker: Broker, proxy: Proxy, bank: Bank, client: KafkaClient, token: str
) -> None:
    """The word that work begins, and that it ended well, is the same from every worker: the offset tells them apart."""
    with Running(bank, broker.proxied, haste=HASTY) as running, ThreadPoolExecutor() as senders:
        sent = [_send(client, bank, 1)]
        served = len(running.told("serving"))
        held = proxy.fault(Api.END_TXN, "hold request", times=99)
        second = senders.submit(_send, client, bank, 2)
        held.wait_caught()
        home = partition_of(ACCOUNT.encode(), PARTITIONS)
        mine = running.worker._served[home].metadata
        left = (1, "somebody else") if token == "another" else (0, mine)
        running.worker._member.commit({(running.worker._commands, home): left})
        _wait_unknown(running)
        held.release()
        sent += [second.result(), _send(client, bank, 3)]
        assert len(running.told("serving")) > served
        counts = running.worker.counts
    assert (counts["unknown"], counts["aborted"], counts["accepted"]) == (1, 0, 3)
    assert _versions(sent) == [1, 2, 3]
    assert audit(broker, bank, sent) == []


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS, Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT])
def test_a_reply_that_is_lost_inside_a_transaction_changes_nothing(
    broker: Broker, proxy: Proxy, bank: Bank, client: KafkaClient, api: Api
) -> None:
    with Running(bank, broker.proxied, haste=HASTY):
        sent = [_send(client, bank, 1)]
        lost = proxy.fault(api, "drop reply")
        sent += [_send(client, bank, number) for number in range(2, 6)]
        assert lost.caught == 1
    assert audit(broker, bank, sent) == []


def test_taking_a_timeout_for_an_abort_would_double_what_happened(broker: Broker, proxy: Proxy, bank: Bank) -> None:
    """The twin: a writer that does not look the outcome up."""
    events, name = names.events(bank.name), f"naive.{bank.name}"
    producer = broker.producer(bootstrap_servers=broker.proxied, transactional_id=name, socket_timeout_ms=1000)
    producer.init_transactions(SECONDS)
    unheard = proxy.fault(Api.END_TXN, "drop reply", times=99)
    producer.begin_transaction()
    producer.produce(events, b"one", partition=0)
    producer.flush(SECONDS)
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        producer.commit_transaction(1.5)
    unheard.wait_replies()
    unheard.release()
    again = broker.producer(transactional_id=name)
    again.init_transactions(SECONDS)
    again.begin_transaction()
    again.produce(events, b"one", partition=0)
    again.commit_transaction(SECONDS)
    assert [record.value for record in broker.settled(events)] == [b"one", b"one"]


def _send(client: KafkaClient, bank: Bank, amount: int) -> Sent:
    sent = Sent(f"id-{amount}", ACCOUNT, bank.deposit(ACCOUNT, amount), 1)
    sent.answer = client.send(sent.command, id=sent.id, timeout=240.0)
    return sent


def _wait_unknown(running: Running) -> None:
    wait_until(lambda: running.worker.counts["unknown"] > 0, lambda: f"an unknown outcome: {running.reports}")


def _versions(sent: list[Sent]) -> list[int]:
    return [one.answer.version for one in sent if isinstance(one.answer, Receipt)]
