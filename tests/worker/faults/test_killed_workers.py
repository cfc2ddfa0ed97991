"""Workers come and go, stand still and are killed, and so does the broker: nothing is lost and nothing happens twice.

Each test is one that the simulator runs with all its variations; here it is whole, on a real broker.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from leftfold.errors import ConfigurationError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.local import kill, restart
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.position import Receipt
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT, good
from tests.worker.load import Load, Sent, audit, send
from tests.worker.processes import Circumstances, Start, Supervisor, WorkerProcess
from tests.worker.proxy import Api, Deed, Proxy
from tests.worker.running import Haste, Running

pytestmark = [pytest.mark.servers, pytest.mark.faults]

HOME = partition_of(ACCOUNT.encode(), PARTITIONS)
HASTY = Haste(socket=2000, call=6.0, transaction=60_000, session=30_000)


def test_workers_that_are_killed_again_and_again_lose_and_double_nothing(
    broker: Broker, bank: Bank, start: Start
) -> None:
    with Supervisor(start, Circumstances(broker.distant, bank.name), 2) as workers:
        with Load(broker.settings, bank) as load:
            for number in range(10):
                load.wait_answered(60)
                workers.workers[number % 2].kill()
            load.wait_answered(100)
        assert audit(broker, bank, load.sent) == []


def test_a_worker_that_wakes_up_after_a_takeover_is_fenced(broker: Broker, bank: Bank, start: Start) -> None:
    zombie = start(Circumstances(broker.distant, bank.name))
    zombie.wait_serving(4)
    with Load(broker.settings, bank) as load:
        load.wait_answered(100)
        zombie.signal(signal.SIGSTOP)
        zombie.wait_stopped()
        start(Circumstances(broker.distant, bank.name)).wait_serving(4)
        load.wait_answered(100)
        _wake(zombie)
        load.wait_answered(100)
        assert zombie.code in (None, 75), str(zombie)
    assert audit(broker, bank, load.sent) == []


def _wake(zombie: WorkerProcess) -> None:
    """Either it ends to be started again, or it joins again and serves what the group gives it."""
    before = len(zombie.reported("serving"))
    zombie.signal(signal.SIGCONT)
    wait_until(
        lambda: zombie.code is not None or len(zombie.reported("serving")) > before, lambda: f"an end of {zombie}"
    )
    assert zombie.code in (None, 75), str(zombie)


def test_partitions_move_between_workers_under_load(broker: Broker, bank: Bank, start: Start) -> None:
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


def test_a_worker_that_is_asked_to_stop_leaves_every_partition_clean_to_a_quick_successor(
    broker: Broker, bank: Bank, start: Start
) -> None:
    """Quick: one that had not left its group would be waited for longer than tests wait."""
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
    broker: Broker, bank: Bank, proxy: Proxy, start: Start, heard: Deed
) -> None:
    """The commit is certain by then, and perhaps answered; but no marker is written, and the broker forgets to."""
    given = Circumstances(broker.proxied, bank.name)
    with Supervisor(start, given, 2) as workers, Load(broker.settings, bank) as load:
        wait_until(lambda: workers.served == {0, 1, 2, 3}, "every partition to be served")
        load.wait_answered(100)
        proxy.fault(Api.END_TXN, heard, then=lambda: kill(broker.data, "kafka")).wait_replies()
        restart(broker.data, "kafka")
        load.wait_answered(300)
    assert {life.code for life in workers.lives} <= {None, 69, 75}, [str(life) for life in workers.lives]
    assert audit(broker, bank, load.sent) == []


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_unknown_outcome_is_looked_up(
    broker: Broker, bank: Bank, client: KafkaClient, proxy: Proxy, happened: bool
) -> None:
    """One that happened is applied, and one that did not is decided again."""
    with Running(bank, broker.proxied, haste=HASTY) as running, ThreadPoolExecutor() as senders:
        sent = [send(client, bank, 1)]
        unheard = proxy.fault(Api.END_TXN, "drop reply" if happened else "hold request", times=99)
        second = senders.submit(send, client, bank, 2)
        _wait_unknown(running)
        unheard.release()
        sent += [second.result(), send(client, bank, 3)]
        counts = running.worker.counts
    assert (counts["unknown"], counts["aborted"]) == (1, 0 if happened else 1)
    assert (counts["accepted"], counts["duplicates"]) == (3, 0)
    assert _versions(sent) == [1, 2, 3]
    assert audit(broker, bank, sent) == []


@pytest.mark.parametrize("token", ["another", "the same"])
def test_a_partition_that_another_worker_committed_meanwhile_is_restored(
    broker: Broker, bank: Bank, client: KafkaClient, proxy: Proxy, token: str
) -> None:
    """The word that work begins, and that it ended well, is the same from every worker: the offset tells them apart."""
    with Running(bank, broker.proxied, haste=HASTY) as running, ThreadPoolExecutor() as senders:
        sent = [send(client, bank, 1)]
        served = len(running.reports.of("serving"))
        held = proxy.fault(Api.END_TXN, "hold request", times=99)
        second = senders.submit(send, client, bank, 2)
        held.wait_caught()
        left = (1, "another worker") if token == "another" else (0, running.worker._served[HOME].metadata)
        running.worker._member.commit({(running.worker._commands, HOME): left})
        _wait_unknown(running)
        held.release()
        sent += [second.result(), send(client, bank, 3)]
        assert len(running.reports.of("serving")) > served
        counts = running.worker.counts
    assert (counts["unknown"], counts["aborted"], counts["accepted"]) == (1, 0, 3)
    assert _versions(sent) == [1, 2, 3]
    assert audit(broker, bank, sent) == []


def test_a_worker_stops_before_it_decides_with_another_number_of_partitions(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant, haste=Haste(check=0)) as running:
        client.send(bank.deposit("account"), timeout=WAIT_SECONDS)
        broker.add_partitions(names.commands(bank.name), 5)
        failure = running.wait_failure()
    assert isinstance(failure, ConfigurationError)
    assert failure.exit_code == 78
    assert "5 partitions" in str(failure)
    assert "moving streams to another count is a migration" in str(failure)
    with pytest.raises(ConfigurationError), Running(bank, broker.distant):
        pass


def test_a_key_that_has_moved_to_another_partition_is_not_decided_there(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """The twin: a worker that has not looked yet; it refuses what it would decide from nothing."""
    moved = next(
        f"a{n}" for n in range(99) if partition_of(f"a{n}".encode(), 4) != partition_of(f"a{n}".encode(), 5) < 4
    )
    with Running(bank, broker.distant) as running:
        client.send(bank.deposit(moved), timeout=WAIT_SECONDS)
        broker.add_partitions(names.commands(bank.name), 5)
        producer = broker.producer()
        letter = good(bank, "moved", bank.deposit(moved))
        there = partition_of(moved.encode(), 5)
        producer.produce(names.commands(bank.name), letter.value, letter.key, there, headers=list(letter.headers))
        wait_until(lambda: running.worker.counts["dead"] == 1, lambda: f"a dead letter: {running.worker.counts}")
    assert len(broker.records(names.events(bank.name))) == 1


def _wait_unknown(running: Running) -> None:
    wait_until(lambda: running.worker.counts["unknown"] > 0, lambda: f"an unknown outcome: {running.reports}")


def _versions(sent: list[Sent]) -> list[int]:
    return [one.answer.version for one in sent if isinstance(one.answer, Receipt)]
