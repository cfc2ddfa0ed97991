"""A command that kills its worker is found, and its neighbours are decided exactly once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from leftfold import names
from leftfold.errors import ContractError
from leftfold.kafka.client import KafkaClient
from leftfold.partitioner import partition_of
from tests.worker.audit import audit
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT
from tests.worker.process import Circumstances
from tests.worker.processes import Start
from tests.worker.shop import Haste
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

HOME = partition_of(ACCOUNT.encode(), 4)


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


def test_a_command_that_kills_its_process_is_buried_after_three_lonely_deaths(
    broker: Broker, start: Start, bank: Bank
) -> None:
    sent = _around(bank, bank.strike(ACCOUNT, "kill"))
    given = Circumstances(broker.address, bank.name, batch=2000, haste=Haste(session=1000))
    with KafkaClient(bank.name, broker.settings) as client, ThreadPoolExecutor() as senders:
        answers = senders.submit(
            client.send_many, [one.command for one in sent], ids=[one.id for one in sent], timeout=90.0
        )
        lives = [start(given)]
        while not answers.done():
            wait_until(lambda: answers.done() or lives[-1].code is not None, lambda: f"a death or the end: {lives[-1]}")
            if not answers.done():
                lives.append(start(given))
    for one, answer in zip(sent, answers.result(), strict=True):
        one.answer = answer
    assert 5 <= len(lives) <= 8, [life.code for life in lives]
    assert [one.id for one in sent if isinstance(one.answer, ContractError)] == ["poison"]
    assert audit(broker, bank, sent) == []
    assert b"died 3 times" in dict(broker.records(names.dead(bank.name))[0].headers)["dead_reason"]
