"""A new version of a decider starts from the events and remembers what the old one answered."""

from __future__ import annotations

import json

import pytest

from leftfold import names
from leftfold.envelope import Receipt
from leftfold.errors import ContractError
from leftfold.kafka.client import KafkaClient
from tests.worker.audit import audit
from tests.worker.bank import Bank, Overdrawn, bank
from tests.worker.broker import Broker
from tests.worker.load import Sent
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNT = "account"


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
