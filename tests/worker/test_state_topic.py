"""The state topic is a convenience: compacted, wiped or cut, a worker's state is the fold of the events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import InfrastructureError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from tests.waiting import wait_until
from tests.worker.audit import audit
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.load import Sent
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNTS = 20


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


def test_a_compacted_topic_restores_the_same_states(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    quickly = {"segment_ms": "300", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "100"}
    broker.alter(bank.state, **quickly)
    sent: list[Sent] = []
    with Running(bank, broker.distant) as running:
        wait_until(lambda: _compacted(broker, bank, client, sent), "the cleaner")
        before = _streams(running)
    with Running(bank, broker.distant) as running:
        assert _streams(running) == before
    assert set(broker.starts(bank.state).values()) == {0}
    assert audit(broker, bank, sent) == []


def test_a_wiped_topic_is_filled_from_the_events(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    sent: list[Sent] = []
    with Running(bank, broker.distant) as running:
        _send(client, bank, sent, rounds=5)
        before = _streams(running)
    broker.wipe(bank.state)
    with Running(bank, broker.distant) as running:
        assert _streams(running) == before
        _send(client, bank, sent)
    assert audit(broker, bank, sent) == []


def test_a_topic_that_lost_its_first_half_is_filled_from_the_events(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    sent: list[Sent] = []
    with Running(bank, broker.distant) as running:
        _send(client, bank, sent)
        half = broker.ends(bank.state, committed=True)
        _send(client, bank, sent, accounts=ACCOUNTS // 2)
        before = _streams(running)
    broker.wipe(bank.state, half)
    with Running(bank, broker.distant) as running:
        assert _streams(running) == before
        _send(client, bank, sent)
    assert _marked_starts(broker, bank) == broker.starts(bank.state), "every restore would fold the whole log again"
    assert audit(broker, bank, sent) == []


def test_events_with_a_hole_and_no_state_are_not_served(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    sent: list[Sent] = []
    with Running(bank, broker.distant):
        _send(client, bank, sent)
    broker.wipe(bank.state)
    broker.wipe(names.events(bank.name), dict.fromkeys(range(4), 1))
    with pytest.raises(InfrastructureError, match="gap in the log"), Running(bank, broker.distant):
        pass


def test_events_with_a_hole_are_served_while_the_states_are_there(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """The twin: the same gap, and nothing is lost."""
    sent: list[Sent] = []
    with Running(bank, broker.distant) as running:
        _send(client, bank, sent, rounds=2)
        before = _streams(running)
    broker.wipe(names.events(bank.name), dict.fromkeys(range(4), 1))
    with Running(bank, broker.distant) as running:
        assert _streams(running) == before


def _send(client: KafkaClient, bank: Bank, sent: list[Sent], *, rounds: int = 1, accounts: int = ACCOUNTS) -> None:
    for _ in range(rounds):
        new = []
        for number in range(accounts):
            account = f"account-{number}"
            new.append(Sent(f"id-{len(sent) + number}", account, bank.deposit(account, number), 1))
        answers = client.send_many([one.command for one in new], ids=[one.id for one in new])
        for one, answer in zip(new, answers, strict=True):
            one.answer = answer
        sent += new


def _compacted(broker: Broker, bank: Bank, client: KafkaClient, sent: list[Sent]) -> bool:
    """Writes on, which rolls segments, until every partition has lost records that were replaced."""
    _send(client, bank, sent)
    wanted = Counter(one.account for one in sent)
    found = Counter((r.key or b"").decode() for r in broker.records(bank.state))
    return all(found[account] < number / 2 for account, number in wanted.items())


def _streams(running: Running) -> dict[str, tuple[int, object]]:
    """Version and state of every stream that the worker holds."""
    return {
        key: (fields["version"], fields["state"])
        for held in running.worker._lane.held.values()
        for key, fields in ((key, json.loads(value)) for key, value in held.store.items())
    }


def _marked_starts(broker: Broker, bank: Bank) -> dict[int, int]:
    """Where each state partition began, as its last `@` knows it."""
    checkpoints = {
        r.partition: ChangelogCheckpoint.decode(r.value or b"") for r in broker.records(bank.state) if r.key == MARK
    }
    return {partition: checkpoint.start for partition, checkpoint in checkpoints.items()}
