"""A worker that may not write to the process it answers decides all the same, and says which answers are missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from leftfold import App
from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.errors import ConfigurationError
from leftfold.local import embedded
from leftfold.local.settings import LocalSettings
from leftfold.model import keys as names
from tests.waiting import wait_until
from tests.worker.bank import PARTITIONS, Bank, bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import ACCOUNT, good
from tests.worker.running import Running

pytestmark = pytest.mark.servers

TO = "saga.commands"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that knows rights; nobody may write what the process `saga` is answered."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    properties = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    data: Path = tmp_path_factory.mktemp("broker")
    with embedded(data, settings=LocalSettings(kafka_properties=properties), want=frozenset({"kafka"})) as servers:
        broker = Broker(servers.kafka, servers.kafka, servers.kafka, 0, data)
        admin = AdminClient({"bootstrap.servers": servers.kafka})
        admin.create_topics([NewTopic(TO, PARTITIONS, 1)])[TO].result(SECONDS)
        wait_until(lambda: _written(servers.kafka) is None, "the topic, with an input")
        denied = AclBinding(
            ResourceType.TOPIC, TO, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*",
            AclOperation.WRITE, AclPermissionType.DENY,
        )  # fmt: skip
        others = AclBinding(
            ResourceType.TOPIC, TO, ResourcePatternType.LITERAL, "User:*", "*",
            AclOperation.ALL, AclPermissionType.ALLOW,
        )  # fmt: skip
        for future in admin.create_acls([denied, others]).values():
            future.result(SECONDS)
        code = KafkaError.TOPIC_AUTHORIZATION_FAILED
        wait_until(lambda: _written(servers.kafka) == code, "the right to be taken away")
        yield broker


def _written(address: str) -> int | None:
    """Writes an input; the code of the error, None = it arrived."""
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": address})
    producer.produce(TO, b"", b"s", 0, on_delivery=lambda error, message: told.append(error))
    producer.flush(SECONDS)
    return told[0] and int(told[0].code())


@pytest.fixture
def answering(broker: Broker) -> Bank:
    """A bank that takes commands of the process."""
    one = bank(f"bank-{uuid4().hex[:8]}")
    app = App(one.app.name, partitions=PARTITIONS, deciders=one.app.deciders, senders=["saga"])
    return broker.opened(replace(one, app=app))


@pytest.mark.parametrize("withholds", [True, False])
def test_what_may_not_be_answered_is_decided_all_the_same(
    broker: Broker, answering: Bank, withholds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not withholds:
        monkeypatch.setattr(CommandProcessor, "withhold", lambda self, topics: False)
    from_saga = good(answering, "of the saga", answering.deposit(ACCOUNT)).headed(
        reply_to=TO.encode(), reply_key=b"s", origin=f"{TO}/0/0/0".encode()
    )
    producer = broker.producer()
    for one in (from_saga, good(answering, "of somebody else", answering.deposit(ACCOUNT))):
        producer.produce(names.commands(answering.name), one.value, one.key, one.partition, headers=list(one.headers))
    assert producer.flush(SECONDS) == 0
    with Running(answering, broker.address) as running:
        counts = running.worker.counts
        if withholds:
            wait_until(lambda: running.going and counts["accepted"] == 2, lambda: f"{running.reports}")
            (told,) = running.told("answers withheld")
            assert (told["to"], counts["replies_unanswerable"], counts["dead"]) == ([TO], 1, 0)
        else:
            failure = running.wait_failure()
            assert isinstance(failure, ConfigurationError), failure
            assert f"may not write {TO};" in str(failure)
            assert counts["accepted"] == 0
