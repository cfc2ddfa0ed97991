"""Commands that kill their worker, or take longer than a transaction: they are found, and their neighbours decided."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import ContractError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.worker.transactions import Transactions
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.messages import Command
from leftfold.ports.protocols import RawRecord
from tests.waiting import wait_until
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT, good, post
from tests.worker.load import Sent, audit, facts
from tests.worker.processes import Circumstances, Start
from tests.worker.running import CALM, Haste, Running

pytestmark = [pytest.mark.servers, pytest.mark.faults]

HOME = partition_of(ACCOUNT.encode(), 4)

NEIGHBOURS = 40
BACKLOG = 12_000


def test_a_command_that_kills_its_process_is_buried_after_three_lonely_deaths(
    broker: Broker, start: Start, bank: Bank
) -> None:
    sent = _around(bank, bank.strike(ACCOUNT, "kill"))
    given = Circumstances(broker.distant, bank.name, batch=2000, haste=Haste(session=1000))
    with KafkaClient(bank.name, broker.settings) as client, ThreadPoolExecutor() as senders:
        answers = senders.submit(
            client.send_many, [one.command for one in sent], ids=[one.id for one in sent], timeout=240.0
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
    assert audit(broker, bank, sent, ["poison"]) == []
    assert b"died 3 times" in dict(broker.records(names.dead(bank.name))[0].headers)["dead_reason"]


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_command_that_ends_its_worker_is_buried_only_because_work_is_marked_before_it_begins(
    broker: Broker, bank: Bank, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checkpoints:
        monkeypatch.setattr(GroupMember, "commit", lambda self, offsets: None)
    post(broker, bank, [good(bank, "poison", bank.strike(ACCOUNT, "leave")), good(bank, "n", bank.deposit(ACCOUNT))])
    lives = 0
    while lives < 6 and not broker.settled(names.events(bank.name)):
        lives += 1
        with suppress(SystemExit), Running(bank, broker.distant, haste=Haste()) as running:
            wait_until(lambda: running.going and running.worker.counts["accepted"] > 0, "the command behind it")
    dead = broker.records(names.dead(bank.name))
    assert (lives, len(dead)) == ((5, 1) if checkpoints else (6, 0))


def test_a_command_whose_transaction_fails_again_and_again_is_not_taken_for_a_killer(
    broker: Broker, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(broker, bank, [good(bank, f"n{n}", bank.deposit(ACCOUNT)) for n in range(3)])
    broker.leave(bank, {HOME: (0, "s")})
    fails, call = [False] + 6 * [True], Transactions._call

    def failing(self: Transactions, function: Any, *args: Any) -> Any:
        if function.__name__ == "send_offsets_to_transaction" and fails and fails.pop(0):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "as planned"))
        return call(self, function, *args)

    monkeypatch.setattr(Transactions, "_call", failing)
    with Running(bank, broker.distant) as running:
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 3, lambda: f"{running.reports}")
        assert (running.worker.counts["aborted"], running.worker.counts["dead"]) == (6, 0)
    assert [fact.command for fact in facts(broker.records(names.events(bank.name)))] == ["n0", "n1", "n2"]


def test_a_suspect_partition_is_decided_one_by_one_and_then_in_full_batches(broker: Broker, bank: Bank) -> None:
    post(broker, bank, [good(bank, f"n{n}", bank.deposit(f"account-{n % 9}")) for n in range(BACKLOG)])
    broker.leave(bank, dict.fromkeys(range(4), (0, "s")))
    with Running(bank, broker.distant) as running:
        wait_until(lambda: running.going and running.worker.counts["accepted"] == BACKLOG, lambda: f"{running.reports}")
    checkpoints = [
        ChangelogCheckpoint.decode(r.value or b"").commands for r in broker.records(bank.state) if _is_mark(r)
    ]
    assert checkpoints[:50] == list(range(1, 51))
    assert max(after - before for before, after in pairwise(checkpoints)) > 300


def test_a_command_that_outlives_a_transaction_is_refused_and_its_neighbours_flow(broker: Broker, bank: Bank) -> None:
    commands = {"first": bank.deposit(ACCOUNT), "slow": bank.dwell(ACCOUNT, 3.1), "last": bank.deposit(ACCOUNT)}
    post(broker, bank, [good(bank, id_, command) for id_, command in commands.items()])
    haste = Haste(session=CALM.session, transaction=60_000, longest=3.0)
    with Running(bank, broker.distant, haste=haste) as running:
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 2, lambda: f"{running.reports}")
        assert (running.worker.counts["dead"], running.worker.counts["aborted"]) == (1, 0)
    assert [fact.command for fact in facts(broker.records(names.events(bank.name)))] == ["first", "last"]
    (dead,) = broker.records(names.dead(bank.name))
    reason = dict(dead.headers)["dead_reason"].decode()
    assert reason.startswith("deciding took 3.")
    assert "a transaction may last 3 s" in reason


def _is_mark(record: RawRecord) -> bool:
    return record.partition == HOME and record.key == MARK


def _around(bank: Bank, poison: Command) -> list[Sent]:
    """Commands of many accounts, and the poison in the middle of them."""
    accounts = [f"account-{n % 9}" for n in range(NEIGHBOURS)]
    sent = [Sent(f"n{n}", account, bank.deposit(account, n)) for n, account in enumerate(accounts)]
    return [*sent[: NEIGHBOURS // 2], Sent("poison", ACCOUNT, poison), *sent[NEIGHBOURS // 2 :]]
