"""A new version of a decider starts from the events and remembers what the old one answered."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from leftfold.engine.processing.stream_state import MemoryStates
from leftfold.errors import ContractError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.model import keys as names
from leftfold.model.position import Receipt
from leftfold.ports.protocols import LogReader, RawRecord
from tests.worker.audit import audit
from tests.worker.bank import Bank, Overdrawn, bank
from tests.worker.broker import Broker
from tests.worker.load import Sent
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNT = "account"


@pytest.mark.faults
def test_old_and_new_workers_alternate_and_agree_on_every_answer(broker: Broker) -> None:
    old = broker.bank()
    new = broker.opened(bank(old.name, version=2))
    sent: list[Sent] = []
    with KafkaClient(old.name, broker.settings) as client:
        for one in (old, new, old, new, new):
            with Running(one, broker.distant):
                _repeat(client, sent)
                _send(client, one, sent)
            assert audit(broker, one, sent) == []
    balances = [_state(broker, one)["balance"] for one in (old, new)]
    assert balances == [3 * 7, 5 * 7 * 100]


@pytest.mark.faults
def test_a_new_worker_without_the_old_topic_forgets_what_was_refused(broker: Broker) -> None:
    """The twin: the events alone do not tell of commands that wrote none."""
    old = broker.bank()
    new = broker.opened(bank(old.name, version=2))
    sent: list[Sent] = []
    with KafkaClient(old.name, broker.settings) as client:
        with Running(old, broker.distant):
            _send(client, old, sent)
            (refused,) = [one for one in sent if isinstance(one.answer, Overdrawn)]
            client.send(old.deposit(ACCOUNT, 1_000_000), timeout=240.0)
        broker.wipe(old.state)
        with Running(new, broker.distant):
            assert isinstance(client.send(refused.command, id=refused.id, timeout=240.0), Receipt)


def test_answers_are_taken_over_in_small_steps(broker: Broker) -> None:
    """However many there are, what is served meanwhile is served on."""
    old = broker.bank(partitions=1)
    new = broker.opened(bank(old.name, version=2, partitions=1))
    with KafkaClient(old.name, broker.settings) as client, Running(old, broker.address) as running:
        for number in range(5):
            client.send(old.look(f"account-{number}"), timeout=240.0)
        reads: list[str] = []
        onlooker = KafkaClientSupplier(broker.settings)
        member = onlooker.member(old.group, names.commands(old.name), lambda partitions, ours: None)
        ports = onlooker.restore_ports(member)
        one_by_one = replace(ports, open_log=lambda: OneByOne(ports.open_log(), reads))
        restoration = Restoration(new.app, new.name, [0], MemoryStates, one_by_one)
        most, done = 0, False
        while not done:
            before = len(reads)
            done = restoration.step()
            most = max(most, len(reads) - before)
        adopted = dict(restoration.found[0].refold.changed)
        restoration.close()
        member.close()
        onlooker.close()
        assert running.going
    assert (most, reads.count(old.state) >= 5) == (1, True)
    assert adopted.keys() == {f"account-{number}" for number in range(5)}


class OneByOne:
    """A reader that brings one record at a time, and notes what it was asked for."""

    def __init__(self, log: LogReader, reads: list[str]) -> None:
        self._log, self._reads = log, reads

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        self._reads.extend(self._log.position().offsets)
        return self._log.poll(1, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _send(client: KafkaClient, one: Bank, sent: list[Sent]) -> None:
    """A deposit, and a withdrawal of more than there will ever be."""
    number = len(sent)
    new = [
        Sent(f"deposit-{number}", ACCOUNT, one.deposit(ACCOUNT, 7), 1),
        Sent(f"withdrawal-{number}", ACCOUNT, one.withdraw(ACCOUNT, 100_000), 0),
    ]
    answers = client.send_many([s.command for s in new], ids=[s.id for s in new])
    for s, answer in zip(new, answers, strict=True):
        s.answer = answer
    sent += new


def _repeat(client: KafkaClient, sent: list[Sent]) -> None:
    """Everything again, with the same answers; and every id with another body, which is refused."""
    answers = client.send_many([one.command for one in sent], ids=[one.id for one in sent])
    assert [_outcome(answer) for answer in answers] == [_outcome(one.answer) for one in sent]
    for one in sent:
        other = one.command.model_copy(update={"amount": 8})
        (answer,) = client.send_many([other], ids=[one.id])
        assert isinstance(answer, ContractError)


def _outcome(answer: object) -> object:
    return (answer.version, answer.events) if isinstance(answer, Receipt) else answer


def _state(broker: Broker, one: Bank) -> dict[str, int]:
    records = [r for r in broker.records(names.state(one.name, one.decider.version)) if r.key == ACCOUNT.encode()]
    state: dict[str, int] = json.loads(records[-1].value or b"{}")["state"]
    return state
