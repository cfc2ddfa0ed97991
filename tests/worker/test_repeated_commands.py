"""A command that is sent again gets its first answer and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.errors import ConflictError, ContractError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from tests.worker.bank import Bank, Overdrawn
from tests.worker.broker import Broker
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNT = "account"


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


@pytest.fixture
def client(broker: Broker, bank: Bank) -> Iterator[KafkaClient]:
    with KafkaClient(bank.name, broker.settings) as client:
        yield client


class Asked:
    """Commands by id, with their first answers; the withdrawal comes before there is enough."""

    def __init__(self, client: KafkaClient, bank: Bank) -> None:
        self._client = client
        self.commands: dict[str, Command] = {
            "paid in": bank.deposit(ACCOUNT, 5, parts=3),
            "refused": bank.withdraw(ACCOUNT, 100),
            "looked": bank.look(ACCOUNT),
            "paid in again": bank.deposit(ACCOUNT, 500),
        }
        self.answers = {id_: self.ask(id_) for id_ in self.commands}

    def ask(self, id_: str, command: Command | None = None) -> Receipt | Exception:
        """Sends the command of an id, or another one with it."""
        (answer,) = self._client.send_many([command or self.commands[id_]], ids=[id_], timeout=240.0)
        return answer

    def check(self, *ids: str) -> None:
        """Asks again: the same outcome, at a position that is no earlier."""
        for id_ in ids or self.commands:
            first, again = self.answers[id_], self.ask(id_)
            if isinstance(first, Receipt) and isinstance(again, Receipt):
                assert (again.version, again.events) == (first.version, first.events), id_
                assert again.position.covers(first.position), id_
            else:
                assert again == first, id_


def test_a_repeated_command_gets_its_first_answer_and_writes_nothing(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        asked = Asked(client, bank)
        assert asked.answers["refused"] == Overdrawn(account=ACCOUNT, balance=15)
        written = len(broker.settled(names.events(bank.name)))
        asked.check()
    with Running(bank, broker.distant) as restarted:
        asked.check()
        assert restarted.worker.counts == {"duplicates": 4}
    assert len(broker.settled(names.events(bank.name))) == written


def test_the_same_request_under_another_id_is_decided_anew(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    """The twin: without its id nothing tells a repetition from a second wish."""
    with Running(bank, broker.distant):
        asked = Asked(client, bank)
        assert isinstance(asked.ask("another id", asked.commands["refused"]), Receipt)


def test_an_id_that_was_used_for_something_else_is_refused(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    with Running(bank, broker.distant):
        asked = Asked(client, bank)
        written = len(broker.settled(names.events(bank.name)))
    with Running(bank, broker.distant):
        for id_ in ("paid in", "refused"):
            assert isinstance(asked.ask(id_, bank.deposit(ACCOUNT, 6)), ContractError)
    dead = [dict(record.headers)["ce_id"] for record in broker.settled(names.dead(bank.name))]
    assert dead == [b"paid in", b"refused"]
    assert len(broker.settled(names.events(bank.name))) == written


def test_answers_that_wrote_events_survive_the_loss_of_the_state_topic(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    with Running(bank, broker.distant):
        asked = Asked(client, bank)
        written = len(broker.settled(names.events(bank.name)))
    broker.wipe(bank.state)
    with Running(bank, broker.distant):
        asked.check("paid in", "paid in again")
    assert len(broker.settled(names.events(bank.name))) == written


def test_an_expected_version_protects_where_no_id_does(broker: Broker, bank: Bank, client: KafkaClient) -> None:
    with Running(bank, broker.distant):
        Asked(client, bank)
        assert client.send(bank.withdraw(ACCOUNT, 100), id="one", expected_version=4, timeout=240.0).version == 5
        with pytest.raises(ConflictError) as conflict:
            client.send(bank.withdraw(ACCOUNT, 100), id="two", expected_version=4, timeout=240.0)
        assert (conflict.value.expected, conflict.value.actual) == (4, 5)
