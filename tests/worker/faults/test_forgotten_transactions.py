"""Transactions that are left: what a broker decided and forgot to end, and what a dead writer left open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.engine.processing.worker_tasks import CommandTask
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker import sent_records
from leftfold.kafka.worker import state_restore as restore
from leftfold.kafka.worker.aborted_records import lost_records, read_settling
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.kafka.worker.sent_records import SentRecords, SentWatch
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.kafka.worker.transaction_log import TransactionOutcome, outcomes_of
from leftfold.kafka.worker.transactions import Transactions, Watchdog
from leftfold.local import kill, restart
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import Report
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT
from tests.worker.load import audit, send
from tests.worker.proxy import Api, Proxy
from tests.worker.running import Running

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Decided = Literal["commit", "abort"]
HOME = partition_of(ACCOUNT.encode(), PARTITIONS)
TOUCHED = (1, 2)
FORGETS_SECONDS = 15.0
LUCK_SECONDS = 400.0  # a busy machine kills so late that many brokers have written their markers
SOURCE = b"/bank/answers"  # of who answers a process, which here has the bank's own topic of commands
_OPEN: list[Consumer] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Closes what a test has opened, before another test kills the broker under it."""
    yield
    while _OPEN:
        _OPEN.pop().close()


@pytest.mark.parametrize("decided", ["commit", "abort"])
def test_it_ends_as_it_was_decided_on_every_partition_and_in_the_offsets(
    broker: Broker, proxy: Proxy, decided: Decided
) -> None:
    bank, writer, hanging = _forgotten(broker, proxy, decided)
    assert hanging.end([0, 2, 3]) == [], "the owner of partition 1 ends it"
    assert _ended(hanging) == [writer]
    wait_until(lambda: not hanging.holds(range(PARTITIONS)), "the markers")
    wait_until(lambda: _is_stable(broker, bank), "the answer to be seen, or never to be")
    answers = [record.value for record in broker.records(names.commands(bank.name)) if record.key != MARK]
    assert answers == ([b"answer"] if decided == "commit" else [])
    events = [record.value for record in broker.records(names.events(bank.name)) if record.key != MARK]
    states = [record.value for record in broker.records(bank.state) if record.key != MARK]
    left = broker.left(bank)
    if decided == "commit":
        assert (events, states) == ([b"event"] * 2, [b"state"] * 2)
        assert [left[p][0] for p in TOUCHED] == [7, 7]
    else:
        assert (events, states) == ([], [])
        assert [left[p][0] for p in TOUCHED] == [-1001, -1001]


def test_taking_over_alone_leaves_it_hanging(broker: Broker, proxy: Proxy) -> None:
    """The twin: what fences and aborts any other transaction changes nothing here, nor does its timeout."""
    bank, writer, hanging = _forgotten(broker, proxy, "commit")
    producer = _producer(broker, writer)
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce(names.events(bank.name), b"elsewhere", b"k", 0)
    producer.commit_transaction(WAIT_SECONDS)
    assert [record.value for record in broker.records(names.events(bank.name))] == [b"elsewhere"]
    assert hanging.holds(TOUCHED)


@pytest.mark.parametrize("ended_by", ["one who looks there", "one more transaction", "one that aborts", "twin"])
def test_what_was_sent_elsewhere_hangs_on_until_it_is_looked_for(
    broker: Broker, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """The twin ends what lies on its own partitions: a process never hears what has become of its command."""
    monkeypatch.setattr(sent_records, "_EVERY", 0.0)
    monkeypatch.setattr(sent_records, "_STUCK", 0.0)
    bank, writer, hanging = _forgotten(broker, proxy, "commit", sent=False)
    assert _ended(hanging) == [writer]
    wait_until(lambda: not hanging.holds(range(PARTITIONS)), "the markers")
    time.sleep(2.0)  # the condition is that nothing happens
    assert not _is_stable(broker, bank)
    commands = names.commands(bank.name)
    if ended_by == "one who looks there":
        looking = replace(hanging, sent={commands: PARTITIONS}, source=SOURCE, prefix="dead.writer.")
        for source, own in ((b"/bank/others", ""), (SOURCE, writer)):
            _look(replace(looking, source=source), own, commands)
            assert not _is_stable(broker, bank), "only who wrote it may be taken over, and not who looks"
        assert _look(looking, "", commands) == [("ended a transaction", writer)]
    else:
        watchdog, reported = Watchdog(), list[str]()
        if ended_by == "twin":
            monkeypatch.setattr(SentRecords, "_is_kept", lambda self, *place, is_doubtful: is_doubtful)
        kind = Transactions if ended_by == "one more transaction" else _AbortsFirst
        transactions = kind({"bootstrap.servers": broker.address}, writer, watchdog)
        kept = SentRecords(transactions, hanging.stable, SOURCE, lambda what, details: reported.append(what))
        kept.keep({(commands, 0): 1}, {commands: [Outgoing(0, b"k", b"answer", [("ce_source", SOURCE)])]})
        watchdog.close()
        assert reported == ["sent again"] * (ended_by == "one that aborts")
    wait_until(lambda: _is_stable(broker, bank), "the answer to be seen")
    found = [record.value for record in broker.records(commands) if record.key != MARK]
    assert found == ([b"answer"] if ended_by != "twin" else []), "the twin does not look whether it is there"


class _AbortsFirst(Transactions):
    """Transactions of which the first meets a full queue, when its records are there already."""

    _is_first = True

    def _produce(self, *writes: Any) -> None:
        super()._produce(*writes)
        if self._is_first:
            self._is_first = False
            self._producer.flush(WAIT_SECONDS)
            raise BufferError("Local: Queue full")


def _look(hanging: Hanging, own: str, topic: str) -> list[tuple[str, str]]:
    """What one reports who looks twice."""
    reported = list[tuple[str, str]]()
    report: Report = lambda what, details: reported.append((what, str(details.get("of"))))  # noqa: E731
    watch = SentWatch(lambda: hanging, [topic], own, report)
    for _ in range(2):
        watch.step()
    return reported


def test_events_whose_ender_is_killed_are_aborted_and_the_note_says_which_they_were(
    broker: Broker, proxy: Proxy
) -> None:
    bank, writer, hanging = _forgotten(broker, proxy, "commit")
    events = names.events(bank.name)
    killed = replace(
        hanging,
        new_producer=lambda id_: cast(Producer, _Dying(_producer(broker, id_))),
        events=events,
        write=partial(write_record, broker.settings),
    )
    with pytest.raises(InterruptedError):
        _ended(killed)
    _producer(broker, writer).init_transactions(WAIT_SECONDS)  # as the next owner does
    wait_until(lambda: not hanging.holds(range(PARTITIONS)), "the markers")
    found = broker.settled(events)
    assert [record.partition for record in found if record.key == MARK] == list(TOUCHED)
    assert all(record.key == MARK for record in found), "the events themselves are lost"
    for record in found:
        noted = read_settling(record)
        assert noted.keys() == {events, bank.state}
        lost = dict(lost_records(hanging.stable, hanging.uncommitted, record.partition, noted.items(), {}))
        assert [(out.key, out.value) for out in lost[events]] == [(b"k", b"event")]
        assert [(out.key, out.value) for out in lost[bank.state]] == [(b"k", b"state")]


def test_a_live_writer_with_nothing_open_is_left_alone_and_an_open_one_found_behind_many_states(
    broker: Broker, bank: Bank
) -> None:
    writer = f"writer.of.{bank.name}"
    producer, hanging = _producer(broker, writer), _hanging(broker, bank)
    producer.init_transactions(WAIT_SECONDS)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(bank.state, ChangelogCheckpoint(number, 0, writer).encode(), MARK, 1)
        for state in range(1000):
            producer.produce(bank.state, b"state", b"%d" % state, 1)
        producer.flush(WAIT_SECONDS)
        wait_until(lambda: hanging.holds([1]), "it to be seen")
        producer.commit_transaction(WAIT_SECONDS)
        wait_until(lambda: not hanging.holds([1]), "the markers")
        assert hanging.end([1]) == [], "nothing is open, whichever producer wrote last"
    producer.begin_transaction()
    producer.produce(names.events(bank.name), b"event", b"k", 1)
    producer.flush(WAIT_SECONDS)
    assert _ended(hanging) == [writer], "found by the last mark, though it is far back"
    with pytest.raises(KafkaException, match="_FENCED"):
        producer.commit_transaction(WAIT_SECONDS)


def test_the_outcome_of_the_last_transaction_of_each_partition_is_found(broker: Broker) -> None:
    bank, found = broker.bank(), []
    observer = Consumer({**broker.settings.librdkafka(), "group.id": bank.group})
    producer = _producer(broker, "a.witness")
    producer.init_transactions(WAIT_SECONDS)
    first, second = ((names.events(bank.name), partition) for partition in (0, 1))
    for places, end in (
        ((), None),
        ((first,), producer.commit_transaction),
        ((first,), producer.abort_transaction),
        ((first, second), producer.commit_transaction),
        ((second,), producer.abort_transaction),
    ):
        if end is not None:
            producer.begin_transaction()
            for topic, partition in places:
                producer.produce(topic, b"x", b"k", partition)
            producer.flush(WAIT_SECONDS)
            end(WAIT_SECONDS)
        found.append(outcomes_of(observer, "a.witness", [first, second]))
    # No record names a partition that no transaction has touched: the last one of the id counts.
    assert [(one.get(first), one.get(second)) for one in found] == [
        (None, None),
        (TransactionOutcome.COMMIT, TransactionOutcome.COMMIT),
        (TransactionOutcome.ABORT, TransactionOutcome.ABORT),
        (TransactionOutcome.COMMIT, TransactionOutcome.COMMIT),
        (TransactionOutcome.COMMIT, TransactionOutcome.ABORT),
    ]
    observer.close()


def test_a_transaction_that_a_dead_writer_left_open_is_ended_at_once(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        sent = [send(client, bank, number) for number in range(3)]
    # Longer than tests wait, and than a restore does without getting anywhere.
    dead = broker.producer(transactional_id=f"dead.{bank.name}", transaction_timeout_ms=900_000)
    dead.init_transactions(WAIT_SECONDS)
    dead.begin_transaction()
    dead.produce(names.events(bank.name), b"of the dead", ACCOUNT, HOME)
    dead.produce(bank.state, ChangelogCheckpoint(99, 99, f"dead.{bank.name}").encode(), MARK, HOME)
    dead.produce(bank.state, b"of the dead", ACCOUNT, HOME)
    _send_offsets(broker, bank, dead, TopicPartition(names.commands(bank.name), HOME, 99, "dead"))
    dead.flush(WAIT_SECONDS)
    with Running(bank, broker.distant):
        sent.append(send(client, bank, 3))
    with pytest.raises(KafkaException, match="_FENCED"):
        dead.commit_transaction(WAIT_SECONDS)
    assert audit(broker, bank, sent) == []


def test_an_offset_alone_that_is_not_stable_ends_no_transaction_until_it_is_overdue(
    broker: Broker, bank: Bank, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that is slow looks the same; here another writer's transaction holds nothing but an offset."""
    ahead = [0.0]
    monkeypatch.setattr(restore, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0]))
    with Running(bank, broker.address) as running:
        send(client, bank, 0)
        other = broker.producer(transactional_id=f"other.{bank.name}")
        other.init_transactions(WAIT_SECONDS)
        other.begin_transaction()
        _send_offsets(broker, bank, other, TopicPartition(names.commands(bank.name), HOME, 1, "other"))
        config = {**broker.settings.librdkafka(), "group.id": bank.group}
        config |= {"enable.auto.commit": False, "enable.partition.eof": True}
        # Consumers of its own, as a successor has: two threads that share one block each other.
        levels = ("read_committed", "read_committed", "read_uncommitted")
        member, stable, uncommitted = (Consumer({**config, "isolation.level": level}) for level in levels)
        ports = running.shop.restore_ports(running.worker._member)
        ports = replace(ports, member=member, stable=stable, uncommitted=uncommitted)
        restoration = Restoration(bank.app, bank.name, [HOME], ports)
        for seconds in (0.0, 5.0):
            ahead[0] += seconds
            assert not restoration.step()
        send(client, bank, 1)
        hanging, owner = ports.hanging(bank.app, CommandTask(bank.decider)), running.worker._transactions.id
        assert hanging.end([HOME], overdue=False) == []
        wait_until(lambda: owner in hanging._hung([HOME]), "the owner to be taken for the one that hangs")
        other.abort_transaction(WAIT_SECONDS)
    restoration.close()


def _send_offsets(broker: Broker, bank: Bank, producer: Producer, *offsets: TopicPartition) -> None:
    """Within its transaction, as a stranger to the group."""
    with Consumer({**broker.settings.librdkafka(), "group.id": bank.group}) as stranger:
        producer.send_offsets_to_transaction(list(offsets), stranger.consumer_group_metadata(), WAIT_SECONDS)


def _ended(hanging: Hanging) -> list[str]:
    """Whose transaction the owner of partition 1 has ended; a question that is not answered in time is asked again."""
    ended: list[str] = []

    def is_ended() -> bool:
        ended[:] = hanging.end([1])
        return bool(ended)

    wait_until(is_ended, "it to be ended")
    return ended


def _is_stable(broker: Broker, bank: Bank) -> bool:
    stable, ends = (broker.ends(names.commands(bank.name), committed=committed) for committed in (True, False))
    return stable == ends


def _forgotten(broker: Broker, proxy: Proxy, decided: Decided, *, sent: bool = True) -> tuple[Bank, str, Hanging]:
    """A bank with a forgotten transaction, its writer, and who ends it.

    Not every broker forgets: some look again, and some have written a marker or two before they are dead.
    """
    deadline, number = time.monotonic() + LUCK_SECONDS, 0
    while time.monotonic() < deadline:
        number += 1
        bank, writer = broker.bank(), f"dead.writer.{decided}.{sent}.{number}"
        _forget(broker, proxy, bank, writer, decided)
        hanging = _hanging(broker, bank, sent=sent)
        time.sleep(2.0)  # the condition is that nothing happens
        stable = [broker.ends(topic, committed=True) for topic in (bank.state, names.events(bank.name))]
        is_marked = any(ends[partition] for ends in stable for partition in TOUCHED)
        if hanging.holds(TOUCHED) and not is_marked and not _is_stable(broker, bank):
            return bank, writer, hanging
    raise AssertionError(f"no broker of {number} has forgotten its transaction")


def _forget(broker: Broker, proxy: Proxy, bank: Bank, writer: str, decided: Decided) -> None:
    """Kills the broker between its decision and its markers, and starts it again before its lease has run out.

    It says that it is about to send the markers; one that has sent them all before it died says nothing more.
    """
    producer = _producer(broker, writer, bootstrap_servers=broker.proxied)
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    for partition in TOUCHED:
        producer.produce(bank.state, ChangelogCheckpoint(7, 0, writer).encode(), MARK, partition)
        producer.produce(bank.state, b"state", b"k", partition)
        producer.produce(names.events(bank.name), b"event", b"k", partition)
    producer.produce(names.commands(bank.name), b"answer", b"k", 0, headers=[("ce_source", SOURCE)])
    _send_offsets(broker, bank, producer, *(TopicPartition(names.commands(bank.name), p, 7, "token") for p in TOUCHED))
    producer.flush(WAIT_SECONDS)
    crash = proxy.fault(Api.END_TXN, "drop reply", then=lambda: kill(broker.data, "kafka"))
    end = producer.commit_transaction if decided == "commit" else producer.abort_transaction
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        end(3.0)
    crash.wait_replies()
    del producer
    restart(broker.data, "kafka")
    log = broker.data / "kafka" / "logs" / "server.log"
    line, until = f"to send transaction markers for {writer}", time.monotonic() + FORGETS_SECONDS
    wait_until(lambda: line in log.read_text("utf-8") or time.monotonic() > until, line)
    wait_until(lambda: _answers(broker, bank), "the broker to answer")


def _answers(broker: Broker, bank: Bank) -> bool:
    try:
        broker.ends(names.events(bank.name), committed=True)
    except InfrastructureError:
        return False
    return True


def _hanging(broker: Broker, bank: Bank, *, sent: bool = True) -> Hanging:
    config = {**broker.settings.librdkafka(), "group.id": bank.group, "enable.partition.eof": True, "log_level": 0}
    levels = ("read_committed", "read_uncommitted")
    stable, uncommitted = (Consumer({**config, "isolation.level": level}) for level in levels)
    _OPEN.extend((stable, uncommitted))
    return Hanging(
        stable,
        uncommitted,
        lambda id_: _producer(broker, id_),
        names.commands(bank.name),
        (bank.state,),
        (names.events(bank.name), names.dead(bank.name)),
        PARTITIONS,
        {names.commands(bank.name): PARTITIONS} if sent else {},
        SOURCE,
    )


class _Dying:
    """A producer whose process is killed before it commits."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        raise InterruptedError


def _producer(broker: Broker, id_: str, **config: str) -> Producer:
    return broker.producer(transactional_id=id_, transaction_timeout_ms=10_000, **config)
