"""Transactions: a late commit commits nothing else (librdkafka#5423), and a call that hangs ends its process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.process_wire import BARRIER
from leftfold.errors import Fenced
from leftfold.kafka.worker import sent_records
from leftfold.kafka.worker import transactions as worker_transactions
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.kafka.worker.sent_records import SentRecords, SentWatch
from leftfold.kafka.worker.transactions import Aborted, Committed, Result, Transactions, Watchdog
from leftfold.model import keys as names
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId
from tests.reports import Reports
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.proxy import Api, Fault, Proxy

SOCKET_MS = 4000


class Paced(Transactions):
    """Transactions that let a test do something between their first topic and their second."""

    between: Callable[[], None] = staticmethod(lambda: None)

    def _produce(self, topic: str, records: Sequence[Outgoing], ends: dict[PartitionId, int]) -> None:
        super()._produce(topic, records, ends)
        self._producer.flush(240.0)
        self.between()


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog(lambda what, seconds: None)
    yield watchdog
    watchdog.close()


@pytest.mark.servers
@pytest.mark.parametrize("rotate", [True, False])
def test_a_late_commit_shows_an_aborted_record_unless_the_producer_is_rotated(
    broker: Broker, bank: Bank, proxy: Proxy, watchdog: Watchdog, rotate: bool
) -> None:
    """Where it is rotated, librdkafka's log line about the request is all that is noticed, and trouble is over then."""
    transactions = _transactions(broker, watchdog, rotate=rotate)
    if rotate:
        transactions._slow = float("inf")
    late = _commit_late(proxy, transactions, bank)
    assert transactions.dirty.startswith("REQTMOUT") or not rotate
    assert transactions.dirty
    assert transactions.rotations == 0

    def let_it_arrive() -> None:
        late.release()
        late.wait_replies()
        transactions.between = lambda: None

    transactions.between = let_it_arrive
    assert isinstance(_run(transactions, bank, b"two", b"x" * 2_000_000), Aborted)
    assert transactions.rotations == (2 if rotate else 1)
    seen = [record.value for record in broker.records(names.events(bank.name))]
    assert seen == ([b"one"] if rotate else [b"one", b"two"])
    if rotate:
        for number in range(2):
            assert isinstance(_run(transactions, bank, b"%d" % number), Committed)
            assert (transactions.rotations, transactions.dirty) == (2, "")


@pytest.mark.servers
@pytest.mark.parametrize("is_checked", [True, False], ids=["", "twin"])
def test_after_a_long_wait_a_worker_ends_unless_its_records_are_committed(
    broker: Broker, bank: Bank, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    """Another worker that ended its transaction may have been killed while it did, which aborts it."""
    monkeypatch.setattr(worker_transactions, "_DOUBTFUL", -1.0 if is_checked else float("inf"))
    events = names.events(bank.name)
    transactions = _waiting(broker, watchdog)
    writer = broker.producer(transactional_id=f"ended.{bank.name}")
    writer.init_transactions(WAIT_SECONDS)
    for partition, end in ((0, writer.commit_transaction), (1, writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce(events, b"event", b"k", partition)
        assert writer.flush(WAIT_SECONDS) == 0
        end(WAIT_SECONDS)
    with _stable(broker, bank) as stable:
        transactions.wait_ended(stable, {(events, 0): 1})
        with pytest.raises(Fenced, match=rf"committed on {events}\[1\]") if is_checked else nullcontext():
            transactions.wait_ended(stable, {(events, 0): 1, (events, 1): 1})


@pytest.mark.servers
def test_a_worker_ends_while_what_it_committed_lies_behind_an_open_transaction(
    broker: Broker, bank: Bank, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a broker forgot looks the same; it is over once the last stable offset has moved."""
    events = names.events(bank.name)
    transactions = _waiting(broker, watchdog)
    writer = _open(broker, bank, events, 1)
    with _stable(broker, bank) as stable:
        with monkeypatch.context() as hasty:
            hasty.setattr(worker_transactions, "OVERDUE", 0.3)
            with pytest.raises(Fenced, match=rf"a committed transaction hangs on {events}\[1\]; this process ends"):
                transactions.wait_ended(stable, {(events, 0): 0, (events, 1): 1})
        assert transactions.rotations == 1
        writer.commit_transaction(WAIT_SECONDS)
        transactions.wait_ended(stable, {(events, 0): 0, (events, 1): 1})
        transactions.wait_ended(stable, {})
    assert transactions.rotations == 1


@pytest.mark.servers
def test_a_worker_that_waits_where_others_write_continues_behind_one_more_transaction(
    broker: Broker, bank: Bank, watchdog: Watchdog
) -> None:
    """What is open there may be of others, whom it does not wait for, or its own, which this transaction ends."""
    commands = names.commands(bank.name)
    transactions = _waiting(broker, watchdog)
    other = _open(broker, bank, commands, 1)
    with _stable(broker, bank) as stable:
        kept = SentRecords(transactions, stable, b"/bank/sender", Reports())
        for partition in (0, 1):
            ends, sent = _send(transactions, commands, partition)
            if partition == 0:
                transactions.wait_ended(stable, ends)
            kept.keep(ends, sent)
    other.abort_transaction(WAIT_SECONDS)
    wait_until(lambda: len(broker.records(commands)) == 3, "the other transaction to end")
    assert _found(broker, commands) == [(0, b"command", b""), (1, b"command", b""), (1, b"{}", BARRIER)]
    assert transactions.rotations == 0


@pytest.mark.servers
@pytest.mark.parametrize("end", ["taken over", "never ended"])
def test_a_worker_that_cannot_keep_what_it_has_sent_ends(
    broker: Broker, bank: Bank, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    if end == "never ended":
        monkeypatch.setattr(sent_records, "_PATIENCE", 0.5)
    monkeypatch.setattr(sent_records, "_GRACE", 0.1)
    commands = names.commands(bank.name)
    transactions = Paced({"bootstrap.servers": broker.address}, f"waits-{uuid4().hex}", watchdog)
    _open(broker, bank, commands, 1)

    def fail() -> None:
        raise BufferError("Local: Queue full")

    with _stable(broker, bank) as stable:
        kept = SentRecords(transactions, stable, b"/bank/sender", Reports())
        ends, sent = _send(transactions, commands, 1)
        if end == "taken over":
            broker.producer(transactional_id=transactions.id).init_transactions(WAIT_SECONDS)
        else:
            transactions.between = fail
        with pytest.raises(Fenced, match="is fenced" if end == "taken over" else r"\[1\] has not ended for"):
            kept.keep(ends, sent)


def test_one_who_may_not_look_reports_it_and_looks_again_later() -> None:
    reports, asked = Reports(), list[int]()

    def refused() -> Hanging:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    watch = SentWatch(refused, ["bank.commands"], "own", reports)
    watch.step()
    watch.step()
    assert ([what for what, _ in reports], len(asked)) == (["not looked for what hangs"], 1)


@pytest.mark.servers
def test_a_transaction_that_hangs_is_noticed(broker: Broker, bank: Bank) -> None:
    expired: list[str] = []
    watchdog = Watchdog(lambda what, seconds: expired.append(what))
    transactions = Transactions({"bootstrap.servers": broker.address}, f"hangs-{bank.name}", watchdog)
    transactions._timeout = 0.1

    def hang() -> Iterator[tuple[str, Sequence[Outgoing]]]:
        wait_until(lambda: bool(expired), "the watchdog")
        raise KeyError("over")
        yield

    with pytest.raises(KeyError):
        transactions.run(hang(), [], None)
    watchdog.close()
    assert set(expired) == {f"a transaction of {transactions.id}"}


def test_a_hanging_call_without_a_watchdog_hangs_on() -> None:
    expired: list[str] = []
    watchdog, over = Watchdog(lambda what, seconds: expired.append(what)), threading.Event()

    def hang() -> None:
        with watchdog.within(0.1, "a call"):
            over.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    wait_until(lambda: len(expired) > 1, "the watchdog")
    assert thread.is_alive()
    over.set()
    thread.join()
    watchdog.close()


def test_a_call_that_returns_in_time_is_left_alone() -> None:
    expired: list[str] = []
    watchdog = Watchdog(lambda what, seconds: expired.append(what))
    with watchdog.within(60.0, "a quick call"):
        pass
    with watchdog.within(0.1, "a slow call"):
        wait_until(lambda: bool(expired), "the watchdog")
    watchdog.close()
    assert set(expired) == {"a slow call"}


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
    return transactions.run(writes, [TopicPartition(names.commands(bank.name), 0, 0, "t")], group)


def _open(broker: Broker, bank: Bank, topic: str, partition: int) -> Producer:
    """A producer with an open transaction on a partition."""
    writer = broker.producer(transactional_id=f"open.{bank.name}")
    writer.init_transactions(WAIT_SECONDS)
    writer.begin_transaction()
    writer.produce(topic, b"open", b"k", partition)
    assert writer.flush(WAIT_SECONDS) == 0
    return writer


@contextmanager
def _stable(broker: Broker, bank: Bank) -> Iterator[Consumer]:
    config = {**broker.settings.librdkafka(), "group.id": bank.group, "enable.partition.eof": True, "log_level": 0}
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        yield consumer


def _waiting(broker: Broker, watchdog: Watchdog) -> Transactions:
    return Transactions({"bootstrap.servers": broker.address}, f"waits-{uuid4().hex}", watchdog)


def _send(
    transactions: Transactions, topic: str, partition: int
) -> tuple[Mapping[PartitionId, int], dict[str, list[Outgoing]]]:
    """The ends and the records of a committed transaction."""
    sent = {topic: [Outgoing(partition, b"k", b"command", [])]}
    result = transactions.run(sent.items(), [], None)
    assert isinstance(result, Committed)
    return result.ends, sent


def _found(broker: Broker, topic: str) -> list[tuple[int, bytes | None, bytes]]:
    """The partition, value and type of each committed record."""
    return sorted(
        (record.partition, record.value, header(record.headers, "ce_type")) for record in broker.records(topic)
    )


def _transactions(broker: Broker, watchdog: Watchdog, *, rotate: bool) -> Paced:
    config = {"bootstrap.servers": broker.proxied, "socket.timeout.ms": SOCKET_MS, "transaction.timeout.ms": 60_000}
    return Paced(config, f"late-{uuid4().hex}", watchdog, timeout=60.0, rotate=rotate)
