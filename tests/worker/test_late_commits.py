"""A commit that arrives late does not commit what came after it (librdkafka#5423, Jepsen's report on Bufstream)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from leftfold.kafka.worker.transactions import Aborted, Committed, Result, Transactions, Watchdog
from leftfold.model import keys as names
from leftfold.ports.outgoing import Outgoing
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.proxy import Api, Fault, Proxy

pytestmark = pytest.mark.servers

SOCKET_MS = 1500


class Paced(Transactions):
    """Transactions that let a test do something between their first topic and their second."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def _produce(self, topic: str, records: Sequence[Outgoing], ends: dict[int, int] | None) -> None:
        super()._produce(topic, records, ends)
        self._producer.flush(240.0)
        self.between()


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


@pytest.mark.parametrize("rotate", [True, False])
def test_a_late_commit_shows_an_aborted_record_unless_the_producer_is_rotated(
    broker: Broker, proxy: Proxy, watchdog: Watchdog, rotate: bool
) -> None:
    bank = broker.bank()
    transactions = _transactions(broker, watchdog, rotate=rotate)
    late = _commit_late(proxy, transactions, bank)
    assert transactions.dirty

    def let_it_arrive() -> None:
        late.release()
        late.wait_replies()
        transactions.between = lambda: None

    transactions.between = let_it_arrive
    assert isinstance(_run(transactions, bank, b"two", b"x" * 2_000_000), Aborted)
    assert transactions.rotations == (2 if rotate else 1)
    seen = [record.value for record in broker.records(names.events(bank.name))]
    assert seen == ([b"one"] if rotate else [b"one", b"two"])


def test_a_request_that_timed_out_inside_librdkafka_is_noticed_by_its_log_line_alone(
    broker: Broker, proxy: Proxy, watchdog: Watchdog
) -> None:
    bank = broker.bank()
    transactions = _transactions(broker, watchdog)
    transactions._slow = float("inf")
    _commit_late(proxy, transactions, bank).release()
    assert transactions.dirty.startswith("REQTMOUT")
    assert transactions.rotations == 0
    assert isinstance(_run(transactions, bank, b"two"), Committed)
    assert (transactions.rotations, transactions.dirty) == (1, "")


def test_transactions_without_trouble_keep_their_producer(broker: Broker, proxy: Proxy, watchdog: Watchdog) -> None:
    bank = broker.bank()
    transactions = _transactions(broker, watchdog, socket_ms=60_000)
    for number in range(20):
        assert isinstance(_run(transactions, bank, b"%d" % number), Committed)
    assert (transactions.rotations, transactions.dirty) == (0, "")


def _commit_late(proxy: Proxy, transactions: Transactions, bank: Bank) -> Fault:
    """A transaction whose first commit request is held up, and which librdkafka commits by a second one."""
    late = proxy.fault(Api.END_TXN, "hold request")
    assert isinstance(_run(transactions, bank, b"one"), Committed)
    assert late.caught == 1
    return late


def _run(transactions: Transactions, bank: Bank, *values: bytes) -> Result:
    """One transaction with an event of each of these values."""
    events = names.events(bank.name)
    writes = [(events, [Outgoing(0, b"key", value, [])]) for value in values]
    with Consumer({"bootstrap.servers": "127.0.0.1", "group.id": bank.group, "log_level": 0}) as nobody:
        group = nobody.consumer_group_metadata()
    transactions.refresh()
    return transactions.run(writes, [TopicPartition(names.commands(bank.name), 0, 0, "t")], group, watch=events)


def _transactions(broker: Broker, watchdog: Watchdog, *, rotate: bool = True, socket_ms: int = SOCKET_MS) -> Paced:
    config = {
        "bootstrap.servers": broker.proxied,
        "socket.timeout.ms": socket_ms,
        "transaction.timeout.ms": 60_000,
    }
    return Paced(config, f"late-{uuid4().hex}", watchdog, timeout=60.0, rotate=rotate)
