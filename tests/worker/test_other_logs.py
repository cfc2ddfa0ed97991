"""A worker never goes on with topics that its states were not made from: shorter ones, copies, or new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import ConfigurationError, InfrastructureError, OutcomeUnknown
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.states import Where, forget_states
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.worker.log_identity import KnownLogs
from leftfold.model import keys as names
from leftfold.model.position import Receipt
from leftfold.ports.codec import header
from tests.waiting import wait_until
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.running import Running
from tests.worker.shop import Haste

pytestmark = pytest.mark.servers

ACCOUNT = "account"
EARLIEST = Haste(session=30_000, check=600.0, reset="earliest")


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank(partitions=1)


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


def test_a_log_that_was_made_again_is_refused_until_the_states_are_folded_from_it(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    events = names.events(bank.name)
    with Running(bank, broker.distant):
        send(client, bank, 5)
    known = {p: checkpoint.events for p, checkpoint in checkpoints(broker, bank).items()}
    copy(broker, bank, 3)
    with failing(bank, broker) as running:
        why = running.wait_failure()
    assert isinstance(why, ConfigurationError)
    assert f"know up to offset {known[0]}" in str(why)
    assert f"ends at {broker.ends(events, committed=False)[0]}" in str(why)
    assert str(why).endswith(f"leftfold state rebuild {bank.name}")
    forget(broker, bank)
    with Running(bank, broker.distant):
        send(client, bank, 2, first=100)
    assert versions(broker, bank) == Counter(range(1, 6))


def test_without_the_look_versions_are_written_twice(
    broker: Broker, bank: Bank, client: KafkaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the state knows version 5, the log holds three, and the next ones leave a gap between."""
    for name in ("check_same", "check_events"):
        monkeypatch.setattr(KnownLogs, name, lambda *_: None)
    with Running(bank, broker.distant):
        send(client, bank, 5)
    copy(broker, bank, 3)
    with Running(bank, broker.distant):
        send(client, bank, 2, first=100)
    assert versions(broker, bank) == Counter([1, 2, 3, 6, 7])


def test_a_shorter_log_is_refused_by_its_end_where_its_id_is_not_known(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        send(client, bank, 5)
        send(client, bank, 1, first=100)  # its batch knows where the one before has ended
    known = checkpoints(broker, bank)[0]
    copy(broker, bank, 3)
    forget_ids(broker, bank, known)
    with failing(bank, broker) as running:
        why = running.wait_failure()
    assert isinstance(why, ConfigurationError)
    end = broker.ends(names.events(bank.name), committed=False)[0]
    assert f"[0] ends at {end}, but the states of {bank.name} know it up to offset {known.events}" in str(why)


def test_commands_that_were_made_again_are_decided_from_the_first_one_and_answers_are_kept(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        send(client, bank, 5)
    remake(broker, bank, names.commands(bank.name))
    with Running(bank, broker.distant) as running:
        first, again = client.send_many([bank.deposit(ACCOUNT)] * 2, ids=["new", "id-4"], timeout=240.0)
        assert isinstance(first, Receipt)
        assert isinstance(again, Receipt)
        assert (first.version, again.version) == (6, 5)
        assert running.told("commands begin again")
    with Running(bank, broker.distant) as running:
        assert not running.told("commands begin again")
    assert versions(broker, bank) == Counter(range(1, 7))


@pytest.mark.parametrize(("where", "decided"), [("end", 0), ("start", 1)])
def test_commands_that_end_before_what_was_decided_are_refused_until_it_is_said_where_to_go_on(
    broker: Broker, bank: Bank, client: KafkaClient, where: Where, decided: int
) -> None:
    commands = names.commands(bank.name)
    with Running(bank, broker.distant):
        send(client, bank, 5)
    known = checkpoints(broker, bank)[0]
    remake(broker, bank, commands)
    forget_ids(broker, bank, known)
    with pytest.raises(OutcomeUnknown):
        client.send(bank.deposit(ACCOUNT), id="waits", timeout=0.01)
    wait_until(lambda: broker.ends(commands, committed=False)[0] == 1, "the command")
    with failing(bank, broker) as running:
        why = running.wait_failure()
    assert isinstance(why, ConfigurationError)
    assert f"{commands}[0] ends at 1, but commands up to offset {known.commands} were taken" in str(why)
    assert f"leftfold state rebuild {bank.name} --commands end" in str(why)
    with pytest.raises(ConfigurationError, match="--commands start"):
        forget(broker, bank)
    forget(broker, bank, where)
    with Running(bank, broker.distant):
        send(client, bank, 1, first=100)
    assert versions(broker, bank) == Counter(range(1, 5 + 1 + decided + 1))


def test_commands_that_retention_took_are_counted(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    commands = names.commands(bank.name)
    with Running(bank, broker.distant):
        send(client, bank, 2)
    waiting = [bank.deposit(ACCOUNT)] * 7
    client.send_many(waiting, timeout=0.01)
    wait_until(lambda: broker.ends(commands, committed=False)[0] == 9, "the commands")
    broker.wipe(commands, {0: 6})
    with Running(bank, broker.distant) as running:
        told = running.told("commands lost to retention")
        assert [dict(one) for one in told] == [{"topic": commands, "partition": 0, "offsets": "2 to 5", "commands": 4}]
        wait_until(lambda: running.worker.counts["accepted"] == 3, "the rest")


def test_what_retention_takes_from_a_worker_that_lags_ends_it_and_its_successor_counts_it(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    commands = names.commands(bank.name)
    with Running(bank, broker.distant) as running:
        send(client, bank, 2)
        with lagging(running, commands):
            post(broker, bank, client, 7)
            broker.wipe(commands, {0: 6})
        why = running.wait_failure()
    assert isinstance(why, InfrastructureError)
    assert f"{commands}[0] does not hold offset 2, which comes next" in str(why)
    with Running(bank, broker.distant) as running:
        found = running.told("commands lost to retention")
        assert [dict(one) for one in found] == [{"topic": commands, "partition": 0, "offsets": "2 to 5", "commands": 4}]
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 3, "the rest")
    assert versions(broker, bank) == Counter(range(1, 6))


def test_a_worker_that_reads_on_where_a_topic_begins_loses_commands_without_a_word(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """The twin: four of seven commands are dropped, and no answer, count or line says so."""
    commands = names.commands(bank.name)
    with Running(bank, broker.distant, haste=EARLIEST) as running:
        send(client, bank, 2)
        with lagging(running, commands):
            post(broker, bank, client, 7)
            broker.wipe(commands, {0: 6})
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 2 + 3, "the rest")
        assert not running.told("commands lost to retention")
    with Running(bank, broker.distant) as running:
        assert not running.told("commands lost to retention")


def test_commands_that_are_made_again_under_a_worker_end_it_and_its_successor_takes_all_of_them(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    commands = names.commands(bank.name)
    with Running(bank, broker.distant, haste=Haste(session=30_000, check=600.0)) as running:
        send(client, bank, 5)
        with lagging(running, commands):
            remake(broker, bank, commands)
        why = running.wait_failure()
    assert isinstance(why, InfrastructureError)
    assert f"{commands}[0] does not hold offset 5, which comes next" in str(why)
    post(broker, bank, client, 3)
    with Running(bank, broker.distant) as running:
        assert running.told("commands begin again")
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 3, "all of them")
    assert versions(broker, bank) == Counter(range(1, 9))


def test_a_worker_that_begins_again_with_commands_made_again_drops_them_without_a_word(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """The twin: what stands below the offset that it would have taken next is lost."""
    commands = names.commands(bank.name)
    with Running(bank, broker.distant, haste=EARLIEST) as running:
        send(client, bank, 5)
        with lagging(running, commands):
            remake(broker, bank, commands)
            post(broker, bank, client, 7)
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 5 + 2, "two of seven")
        wait_until(lambda: broker.left(bank)[0][0] == 7, "all of them to be done with")
        assert running.worker.counts == {"accepted": 7}


def test_events_alone_are_enough_in_another_cluster(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    """The steps of docs/moving.md: topics that are made again stand for another cluster."""
    with Running(bank, broker.distant):
        send(client, bank, 3)
        send(client, bank, 3, first=3)
    for topic in (names.commands(bank.name), bank.state, names.dead(bank.name)):
        remake(broker, bank, topic)
    copy(broker, bank, 6)
    with Running(bank, broker.distant):
        send(client, bank, 2, first=5)
    assert versions(broker, bank) == Counter(range(1, 8)), "id-5 was known, id-6 was not"


def test_a_topic_that_is_made_again_under_a_worker_ends_it(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    with Running(bank, broker.distant, haste=Haste(session=30_000, check=0.05)) as running:
        send(client, bank, 2)
        remake(broker, bank, names.events(bank.name))
        why = running.wait_failure()
    assert isinstance(why, InfrastructureError)
    assert "made again" in str(why)


def send(client: KafkaClient, bank: Bank, count: int, *, first: int = 0) -> None:
    ids = [f"id-{first + number}" for number in range(count)]
    answers = client.send_many([bank.deposit(ACCOUNT)] * count, ids=ids, timeout=240.0)
    assert all(isinstance(answer, Receipt) for answer in answers), answers


@contextmanager
def lagging(running: Running, commands: str) -> Iterator[None]:
    """Within the block the worker fetches nothing."""
    member: Any = running.worker._member
    member.ask(lambda consumer: consumer.pause([TopicPartition(commands, 0)]))
    yield
    member.ask(lambda consumer: consumer.resume([TopicPartition(commands, 0)]))


def post(broker: Broker, bank: Bank, client: KafkaClient, count: int) -> None:
    """Sends commands, and waits for no answer."""
    commands = names.commands(bank.name)
    end = broker.ends(commands, committed=False)[0] + count
    client.send_many([bank.deposit(ACCOUNT)] * count, timeout=0.01)
    wait_until(lambda: broker.ends(commands, committed=False)[0] == end, "the commands")


def failing(bank: Bank, broker: Broker) -> Any:
    """A worker that is not waited for to serve."""
    running = Running(bank, broker.distant)
    running.wait_serving = lambda: None  # type: ignore[method-assign]  # it never will
    return running


def remake(broker: Broker, bank: Bank, topic: str) -> None:
    """Deletes a topic and makes it again."""
    with ClusterAdmin(broker.settings) as cluster:
        cluster.delete(topic)
    ensure(bank.app, broker.settings)


def copy(broker: Broker, bank: Bank, most: int) -> None:
    """Makes the log again with its first records, as a backup or a copy has them: without markers."""
    events = names.events(bank.name)
    kept = broker.settled(events)[:most]
    remake(broker, bank, events)
    producer = broker.producer()
    for record in kept:
        producer.produce(events, record.value, record.key, record.partition, headers=list(record.headers))
    assert producer.flush(240.0) == 0


def checkpoints(broker: Broker, bank: Bank) -> dict[int, ChangelogCheckpoint]:
    found = (record for record in broker.settled(bank.state) if record.key == MARK)
    return {record.partition: ChangelogCheckpoint.decode(record.value or b"") for record in found}


def forget_ids(broker: Broker, bank: Bank, checkpoint: ChangelogCheckpoint) -> None:
    """Writes the checkpoint as workers wrote it before it had ids."""
    producer = broker.producer()
    old = ChangelogCheckpoint(checkpoint.commands, checkpoint.events, checkpoint.writer, checkpoint.start)
    producer.produce(bank.state, old.encode(), MARK, 0)
    assert producer.flush(240.0) == 0


def forget(broker: Broker, bank: Bank, where: Where = "kept") -> None:
    open_log = partial(KafkaLogReader, broker.settings)
    forget_states(bank.app, bank.name, broker.settings, open_log, where)


def versions(broker: Broker, bank: Bank) -> Counter[int]:
    """How often each version of the account stands in the log."""
    return Counter(int(header(r.headers, "ce_sequence")) for r in broker.settled(names.events(bank.name)))
