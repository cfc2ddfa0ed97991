"""Workers come and go, and so does the broker: nothing is lost and nothing happens twice."""

from __future__ import annotations

import signal

import pytest

from leftfold.errors import ConfigurationError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.local import kill, restart
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.broker import Broker
from tests.worker.hostile import good
from tests.worker.load import Load
from tests.worker.process import Circumstances
from tests.worker.processes import Start
from tests.worker.proxy import Api, Deed, Proxy
from tests.worker.running import Running
from tests.worker.shop import Haste
from tests.worker.supervisor import Supervisor

pytestmark = [pytest.mark.servers, pytest.mark.faults]


def test_partitions_move_between_workers_under_load(broker: Broker, start: Start) -> None:
    bank = broker.bank()
    given = Circumstances(broker.distant, bank.name, haste=Haste(session=10_000))
    first, second = start(given), start(given)
    with Load(broker.settings, bank) as load:
        wait_until(lambda: len(first.serves) == len(second.serves) == 2, lambda: f"two each: {first} {second}")
        load.wait_answered(100)
        third = start(given)
        wait_until(lambda: len(third.serves) >= 1, lambda: f"one for the third: {third}")
        load.wait_answered(100)
        first.signal(signal.SIGTERM)
        assert first.wait_end() == 0
        wait_until(lambda: len(second.serves) + len(third.serves) == 4, lambda: f"two each: {second} {third}")
        load.wait_answered(100)
        second.kill()
        third.wait_serving(4)
        load.wait_answered(100)
    assert audit(broker, bank, load.sent) == []


def test_a_worker_that_is_told_to_stop_leaves_every_partition_clean_to_a_quick_successor(
    broker: Broker, start: Start
) -> None:
    """Quick: one that had not left its group would be waited for longer than tests wait."""
    bank = broker.bank()
    with Load(broker.settings, bank) as load:
        first = start(Circumstances(broker.distant, bank.name, haste=Haste(session=300_000)))
        load.wait_answered(200)
        first.signal(signal.SIGTERM)
        assert first.wait_end() == 0
        assert {metadata for _, metadata in broker.left(bank).values()} == {"clean"}
        start(Circumstances(broker.distant, bank.name)).wait_serving(4)
    assert audit(broker, bank, load.sent) == []


@pytest.mark.parametrize("heard", ["pass", "drop reply"])
def test_a_broker_that_crashes_at_a_commit_and_comes_back_costs_nothing_but_time(
    broker: Broker, proxy: Proxy, start: Start, heard: Deed
) -> None:
    """The commit is certain by then, and perhaps answered; but no marker is written, and the broker forgets to."""
    bank = broker.bank()
    with (
        Supervisor(start, Circumstances(broker.proxied, bank.name), 2) as workers,
        Load(broker.settings, bank) as load,
    ):
        wait_until(lambda: workers.served == {0, 1, 2, 3}, "every partition to be served")
        load.wait_answered(100)
        proxy.fault(Api.END_TXN, heard, then=lambda: kill(broker.data, "kafka")).wait_replies()
        restart(broker.data, "kafka")
        load.wait_answered(300, seconds=240.0)
    assert {life.code for life in workers.lives} <= {None, 69, 75}, [str(life) for life in workers.lives]
    assert audit(broker, bank, load.sent) == []


def test_a_worker_stops_before_it_decides_with_another_number_of_partitions(broker: Broker) -> None:
    bank = broker.bank()
    with (
        KafkaClient(bank.name, broker.settings) as client,
        Running(bank, broker.distant, haste=Haste(check=0)) as running,
    ):
        client.send(bank.deposit("account"), timeout=240.0)
        broker.add_partitions(names.commands(bank.name), 5)
        failure = running.wait_failure()
    assert isinstance(failure, ConfigurationError)
    assert failure.exit_code == 78
    assert "5 partitions" in str(failure)
    assert "moving streams to another count is a migration" in str(failure)
    with pytest.raises(ConfigurationError), Running(bank, broker.distant):
        pass


def test_a_key_that_has_moved_to_another_partition_is_not_decided_there(broker: Broker) -> None:
    """The twin: a worker that has not looked yet; it refuses what it would decide from nothing."""
    bank = broker.bank()
    moved = next(
        f"a{n}" for n in range(99) if partition_of(f"a{n}".encode(), 4) != partition_of(f"a{n}".encode(), 5) < 4
    )
    with KafkaClient(bank.name, broker.settings) as client, Running(bank, broker.distant) as running:
        client.send(bank.deposit(moved), timeout=240.0)
        broker.add_partitions(names.commands(bank.name), 5)
        producer = broker.producer()
        letter = good(bank, "moved", bank.deposit(moved))
        there = partition_of(moved.encode(), 5)
        producer.produce(names.commands(bank.name), letter.value, letter.key, there, headers=list(letter.headers))
        wait_until(lambda: running.worker.counts["dead"] == 1, lambda: f"a dead letter: {running.worker.counts}")
    assert len(broker.records(names.events(bank.name))) == 1
