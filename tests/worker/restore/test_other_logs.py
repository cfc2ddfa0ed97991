"""A worker never works on with topics that its states were not made from: shorter ones, copies, or new ones.

The simulator damages logs under workers at random; here it is shown that what brokers say of their topics is enough.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.states import Where, forget_states
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model import keys as names
from leftfold.model.position import Receipt
from leftfold.ports.message_codec import header
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.running import Haste, Running

pytestmark = pytest.mark.servers

ACCOUNT = "account"
WATCHFUL = Haste(session=30_000, check=0.05)


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank(partitions=1)


def test_events_that_are_another_log_end_a_worker_and_are_refused_until_the_states_are_folded_from_them(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    events = names.events(bank.name)
    with Running(bank, broker.distant, haste=WATCHFUL) as running:
        send(client, bank, 5)
        send(client, bank, 1, first=50)  # its batch knows where the one before has ended
        kept = checkpoint(broker, bank)
        copy(broker, bank, 3)
        why: BaseException = running.wait_failure()
    assert isinstance(why, InfrastructureError)
    assert "made again" in str(why)
    known, end = kept.events, broker.ends(events, committed=False)[0]
    message = str(refusal(bank, broker))
    assert f"know up to offset {known}" in message
    assert f"ends at {end}" in message
    assert message.endswith(f"leftfold state rebuild {bank.name}")
    forget_ids(broker, bank, kept)  # a worker of before topics had ids goes by where the log ends
    assert f"[0] ends at {end}, but the states of {bank.name} know it up to offset {known}" in str(
        refusal(bank, broker)
    )
    forget(broker, bank)
    with Running(bank, broker.distant):
        send(client, bank, 2, first=100)
    assert versions(broker, bank) == Counter(range(1, 6))


def test_commands_that_were_lost_or_made_again_are_reported_and_what_is_there_is_decided(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    commands = names.commands(bank.name)
    with Running(bank, broker.distant):
        send(client, bank, 5)
    post(broker, bank, client, 7)
    broker.wipe(commands, {0: 9})
    with Running(bank, broker.distant) as running:
        lost = [dict(one) for one in running.reports.of("commands lost to retention")]
        assert lost == [{"topic": commands, "partition": 0, "offsets": "5 to 8", "commands": 4}]
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 3, "the rest")
    remake(broker, bank, commands)
    with Running(bank, broker.distant) as running:
        first, again = client.send_many([bank.deposit(ACCOUNT)] * 2, ids=["new", "id-4"], timeout=WAIT_SECONDS)
        assert isinstance(first, Receipt)
        assert isinstance(again, Receipt)
        assert (first.version, again.version) == (9, 5)
        assert running.reports.of("commands begin again")
    known = checkpoint(broker, bank)
    remake(broker, bank, commands)
    forget_ids(broker, bank, known)
    post(broker, bank, client, 1)
    message = str(refusal(bank, broker))
    assert f"{commands}[0] ends at 1, but commands up to offset {known.commands} were taken" in message
    assert f"leftfold state rebuild {bank.name} --commands end" in message
    with pytest.raises(ConfigurationError, match="--commands start"):
        forget(broker, bank)
    forget(broker, bank, "start")
    with Running(bank, broker.distant) as running:
        send(client, bank, 1, first=100)
        assert not running.reports.of("commands begin again")
    assert versions(broker, bank) == Counter(range(1, 12))


def test_events_alone_are_enough_in_another_cluster(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    """The steps of docs/moving.md: topics that are made again stand for another cluster."""
    threefold = bank.deposit(ACCOUNT, parts=3)
    with Running(bank, broker.distant):
        first = client.send(threefold, id="threefold", timeout=WAIT_SECONDS)
        send(client, bank, 3)
        send(client, bank, 3, first=3)
    for topic in (names.commands(bank.name), bank.state, names.dead(bank.name)):
        remake(broker, bank, topic)
    copy(broker, bank, 9)
    with Running(bank, broker.distant):
        again = client.send(threefold, id="threefold", timeout=WAIT_SECONDS)
        assert (again.version, again.events) == (first.version, first.events) == (3, 3)
        assert again.position.next_offset(names.events(bank.name), 0) >= 3, "a read behind the answer sees its events"
        send(client, bank, 2, first=5)
    assert versions(broker, bank) == Counter(range(1, 11)), "id-5 was known, id-6 was not"


def send(client: KafkaClient, bank: Bank, count: int, *, first: int = 0) -> None:
    ids = [f"id-{first + number}" for number in range(count)]
    answers = client.send_many([bank.deposit(ACCOUNT)] * count, ids=ids, timeout=WAIT_SECONDS)
    assert all(isinstance(answer, Receipt) for answer in answers), answers


def post(broker: Broker, bank: Bank, client: KafkaClient, count: int) -> None:
    """Sends commands, and waits for no answer."""
    commands = names.commands(bank.name)
    end = broker.ends(commands, committed=False)[0] + count
    client.send_many([bank.deposit(ACCOUNT)] * count, timeout=0.01)
    wait_until(lambda: broker.ends(commands, committed=False)[0] == end, "the commands")


def refusal(bank: Bank, broker: Broker) -> ConfigurationError:
    """Why a worker refuses to serve."""
    running = Running(bank, broker.distant)
    running.wait_serving = lambda: None  # type: ignore[method-assign]  # it never will
    with running:
        why = running.wait_failure()
    assert isinstance(why, ConfigurationError)
    return why


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
        headers: Any = list(record.headers)
        producer.produce(events, record.value, record.key, record.partition, headers=headers)
    assert producer.flush(WAIT_SECONDS) == 0


def checkpoint(broker: Broker, bank: Bank) -> ChangelogCheckpoint:
    """The last one of the only partition."""
    *_, last = (record for record in broker.settled(bank.state) if record.key == MARK)
    return ChangelogCheckpoint.decode(last.value or b"")


def forget_ids(broker: Broker, bank: Bank, checkpoint: ChangelogCheckpoint) -> None:
    """Writes the checkpoint as workers wrote it before it had ids."""
    producer = broker.producer()
    old = ChangelogCheckpoint(checkpoint.commands, checkpoint.events, checkpoint.writer, checkpoint.start)
    producer.produce(bank.state, old.encode(), MARK, 0)
    assert producer.flush(WAIT_SECONDS) == 0


def forget(broker: Broker, bank: Bank, where: Where = "kept") -> None:
    open_log = partial(KafkaLogReader, broker.settings)
    forget_states(bank.app, bank.name, broker.settings, open_log, where)


def versions(broker: Broker, bank: Bank) -> Counter[int]:
    """How often each version of the account stands in the log."""
    return Counter(int(header(r.headers, "ce_sequence")) for r in broker.settled(names.events(bank.name)))
