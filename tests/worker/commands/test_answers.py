"""Answers: a command that is sent again gets its first one, forged ones are seen through, and some may not be given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from leftfold import App
from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.errors import ConfigurationError, ConflictError, ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import PARTITIONS, Bank, Overdrawn
from tests.worker.bank import bank as bank_called
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT, good, post
from tests.worker.raw_headers import produce_with_header
from tests.worker.running import Running

pytestmark = pytest.mark.servers

FORGED = (b"", b"no json", b"[]", b"[" * 10_000, b'{"error":{}}', b'{"version":' + b"9" * 5000 + b"}", bytes(100_000))
TO = "saga.commands"


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
        (answer,) = self._client.send_many([command or self.commands[id_]], ids=[id_], timeout=WAIT_SECONDS)
        return answer

    def check(self) -> None:
        """Asks again: the same outcome, at a position that is no earlier."""
        for id_ in self.commands:
            first, again = self.answers[id_], self.ask(id_)
            if isinstance(first, Receipt) and isinstance(again, Receipt):
                assert (again.version, again.events) == (first.version, first.events), id_
                assert again.position.covers(first.position), id_
            else:
                assert again == first, id_


def test_a_repeated_command_gets_its_first_answer_from_every_worker_and_without_its_id_it_is_another_one(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """An expected version protects where no id does."""
    with Running(bank, broker.distant):
        asked = Asked(client, bank)
        assert asked.answers["refused"] == Overdrawn(account=ACCOUNT, balance=15)
        written = len(broker.settled(names.events(bank.name)))
    with Running(bank, broker.distant) as restarted:
        asked.check()
        assert restarted.worker.counts == {"duplicates": 4}
        for id_ in ("paid in", "refused"):
            assert isinstance(asked.ask(id_, bank.deposit(ACCOUNT, 6)), ContractError)
        dead = [dict(record.headers)["ce_id"] for record in broker.settled(names.dead(bank.name))]
        assert dead == [b"paid in", b"refused"]
        assert len(broker.settled(names.events(bank.name))) == written
        assert isinstance(asked.ask("another id", asked.commands["refused"]), Receipt)
        with pytest.raises(ConflictError) as conflict:
            client.send(bank.withdraw(ACCOUNT, 100), id="two", expected_version=4, timeout=WAIT_SECONDS)
        assert (conflict.value.expected, conflict.value.actual) == (4, 5)


def test_forged_answers_keep_no_client_from_its_own(broker: Broker) -> None:
    """Headers that are no text once cost the answers that were fetched with them."""
    one = broker.bank(partitions=1)
    topic, forger = names.replies(one.name), broker.producer()

    def forge(number: int) -> None:
        headers: list[Any] = [("ce_causationid", b"\xff%d" % number), ("ce_causationid", None)]
        forger.produce(topic, FORGED[number % len(FORGED)], b"k", 0, headers=headers[: number % 3])
        forger.flush()
        produce_with_header(broker.address, topic, 0, b"k", b"x", b"\xff\xfe")

    with KafkaClient(one.name, broker.settings) as client, Running(one, broker.address), forging(forge):
        answers = client.send_many([one.deposit(f"a-{n}") for n in range(100)], timeout=WAIT_SECONDS)
        again = [client.send(one.deposit("once"), timeout=WAIT_SECONDS).version for _ in range(10)]
    assert [type(answer) for answer in answers] == [Receipt] * 100
    assert again == list(range(1, 11))


def test_a_forged_answer_to_a_command_is_refused_and_another_one_is_answered(broker: Broker) -> None:
    """A position of another topic is not believed: a read after it would wait in vain."""
    one = broker.bank(partitions=1)
    headers: list[Any] = [("ce_causationid", b"mine")]
    forger, value = broker.producer(), b'{"version":1,"events":1,"position":{"others.events":{"0":9}}}'

    def forge(number: int) -> None:
        forger.produce(names.replies(one.name), value, b"k", 0, headers=headers)
        forger.flush()

    with KafkaClient(one.name, broker.settings) as client:
        with forging(forge), pytest.raises(ContractError, match=r"the position is in 'others.events'"):
            client.send(one.deposit("a"), id="mine", timeout=WAIT_SECONDS)
        with Running(one, broker.address):
            assert client.send(one.deposit("b"), timeout=WAIT_SECONDS).version == 1


@contextmanager
def forging(forge: Callable[[int], None]) -> Iterator[None]:
    """Forges again and again while the block runs, which begins behind the first one."""
    forged = threading.Event()

    def work(stop: threading.Event) -> None:
        numbers = count()
        while not stop.is_set():
            forge(next(numbers))
            forged.set()

    with Background(work) as forger:
        wait_until(lambda: forger.going and forged.is_set(), "the first one")
        yield


@pytest.fixture(scope="module")
def forbidding(broker: Broker) -> Broker:
    """The broker, where no client may write what the process `saga` is answered."""
    with ClusterAdmin(broker.settings) as cluster:
        cluster.create(TO, PARTITIONS, 1, {})
    wait_until(lambda: _may_write(broker), "the topic, with an input")
    admin = AdminClient(broker.settings.librdkafka())
    who = (
        (AclOperation.WRITE, AclPermissionType.DENY, "User:ANONYMOUS"),
        (AclOperation.ALL, AclPermissionType.ALLOW, "User:*"),
    )
    rules = [
        AclBinding(ResourceType.TOPIC, TO, ResourcePatternType.LITERAL, user, "*", what, how) for what, how, user in who
    ]
    for future in admin.create_acls(rules).values():
        future.result(WAIT_SECONDS)
    wait_until(lambda: not _may_write(broker), "the right to be taken away")
    return broker


def _may_write(broker: Broker) -> bool:
    errors: list[Any] = []
    producer = broker.producer()
    producer.produce(TO, b"", b"s", 0, on_delivery=lambda error, message: errors.append(error))
    producer.flush(WAIT_SECONDS)
    return errors[0] is None


@pytest.mark.parametrize("withholds", [True, False])
def test_what_may_not_be_answered_is_decided_all_the_same(
    forbidding: Broker, withholds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin withholds no answer, and ends."""
    if not withholds:
        monkeypatch.setattr(CommandProcessor, "withhold", lambda self, topics: False)
    one = bank_called(f"bank-{uuid4().hex[:8]}")
    app = App(one.app.name, partitions=PARTITIONS, deciders=one.app.deciders, senders=["saga"])
    one = forbidding.opened(replace(one, app=app))
    from_saga = good(one, "of the saga", one.deposit(ACCOUNT)).headed(
        reply_to=TO.encode(), reply_key=b"s", origin=f"{TO}/0/0/0".encode()
    )
    post(forbidding, one, [from_saga, good(one, "of another client", one.deposit(ACCOUNT))])
    with Running(one, forbidding.address) as running:
        counts = running.worker.counts
        if withholds:
            wait_until(lambda: running.going and counts["accepted"] == 2, lambda: f"{running.reports}")
            (details,) = running.reports.of("answers withheld")
            assert (details["to"], counts["replies_unanswerable"], counts["dead"]) == ([TO], 1, 0)
        else:
            failure = running.wait_failure()
            assert isinstance(failure, ConfigurationError), failure
            assert f"may not write {TO};" in str(failure)
            assert counts["accepted"] == 0
