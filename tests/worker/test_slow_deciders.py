"""Slow deciders are planned for by time: transactions stay short, and restarts do not try the same again."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import Fenced
from leftfold.kafka.worker import worker as worker_module
from leftfold.kafka.worker.batching import FIRST, Pace
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.waiting import wait_until
from tests.worker.audit import facts
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import ACCOUNT, good
from tests.worker.points import Point, Points
from tests.worker.running import CALM, Running
from tests.worker.shop import Haste

pytestmark = pytest.mark.servers

HOME = partition_of(ACCOUNT.encode(), PARTITIONS)


@pytest.mark.faults
def test_a_backlog_is_worked_off_in_short_transactions_through_a_restart(broker: Broker) -> None:
    bank, haste = broker.bank(), Haste(session=CALM.session, transaction=60_000, longest=4.0)
    _post(broker, bank, {f"n{n}": bank.dwell(ACCOUNT, 0.05) for n in range(40)})
    points = Points([Point("before send_offsets_to_transaction", "fail")], lambda at: None)
    with Running(bank, broker.distant, haste=haste, points=points) as running:
        wait_until(lambda: running.going and running.worker.counts["accepted"] > 5, lambda: f"{running.reports}")
    done = running.worker.counts["accepted"]
    with Running(bank, broker.distant, haste=haste) as again:
        wait_until(lambda: again.going and done + again.worker.counts["accepted"] == 40, lambda: f"{again.reports}")
    counts = running.worker.counts + again.worker.counts
    # What was put back when the first transaction failed is fetched again, not decided ahead of its turn.
    assert (counts["aborted"], counts["duplicates"], counts["dead"]) == (1, 0, 0)
    assert [fact.command for fact in facts(broker.records(names.events(bank.name)))] == [f"n{n}" for n in range(40)]
    checkpoints = [
        ChangelogCheckpoint.decode(record.value or b"").commands
        for record in broker.records(bank.state)
        if record.partition == HOME and record.key == MARK
    ]
    # A share of 0.4 s holds eight of 50 ms, and the one that ends it.
    assert max(after - before for before, after in pairwise([0, *checkpoints])) <= 9


@pytest.mark.faults
def test_without_a_share_of_time_no_transaction_ends_in_time_and_the_next_life_tries_the_same(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: all is decided while a transaction is open, and brokers look for overdue ones every 10 s."""
    monkeypatch.setattr(worker_module, "SHARE", math.inf)
    monkeypatch.setattr(Pace, "is_cheap", True)
    monkeypatch.setattr(Pace, "limit", FIRST)
    bank, haste = (
        broker.bank(),
        Haste(session=CALM.session, socket=1000, transaction=1000, call=60.0, checkpoints=False),
    )
    _post(broker, bank, {f"n{n}": bank.dwell(ACCOUNT, 0.06) for n in range(FIRST)})
    aborts = 0
    while aborts < 3:
        with suppress(Fenced), Running(bank, broker.distant, haste=haste) as running:
            before = aborts
            wait_until(
                lambda: running.going and before + running.worker.counts["aborted"] >= 3,  # noqa: B023  # called at once
                lambda: f"{running.reports}",
            )
        counts = running.worker.counts
        aborts += max(1, counts["aborted"])  # a life that is fenced ends by its one abort
        assert counts["accepted"] == 0
    assert broker.settled(names.events(bank.name)) == []


@pytest.mark.faults
def test_what_was_put_back_stays_with_the_worker_only_as_long_as_its_partition(broker: Broker) -> None:
    bank, haste = broker.bank(), Haste(session=CALM.session, transaction=60_000, longest=4.0)
    accounts = [f"account-{n % 9}" for n in range(120)]
    _post(broker, bank, {f"n{n}": bank.dwell(account, 0.03) for n, account in enumerate(accounts)})
    with Running(bank, broker.distant, haste=haste) as first:
        second = Running(bank, broker.distant, haste=haste)
        second._thread.start()
        try:
            wait_until(
                lambda: (
                    (first.going and second.going)
                    and (first.worker.counts + second.worker.counts)["accepted"] == 120
                    and len(second.worker.served) > 0
                ),
                lambda: f"{first.reports} {second.reports} {first.worker.counts} {second.worker.counts}",
            )
        finally:
            second.__exit__(None, None, None)
    assert (first.worker.counts + second.worker.counts) == {"accepted": 120}
    found = facts(broker.records(names.events(bank.name)))
    for account in set(accounts):
        mine = [fact for fact in found if fact.key == account]
        assert [fact.version for fact in mine] == list(range(1, len(mine) + 1))
        assert [fact.command for fact in mine] == [f"n{n}" for n, one in enumerate(accounts) if one == account]


def test_a_command_that_outlives_a_transaction_is_refused_and_its_neighbours_flow(broker: Broker) -> None:
    bank, haste = broker.bank(), Haste(session=CALM.session, transaction=60_000, longest=3.0)
    commands = {"first": bank.deposit(ACCOUNT), "slow": bank.dwell(ACCOUNT, 3.1), "last": bank.deposit(ACCOUNT)}
    _post(broker, bank, commands)
    with Running(bank, broker.distant, haste=haste) as running:
        wait_until(lambda: running.going and running.worker.counts["accepted"] == 2, lambda: f"{running.reports}")
        assert (running.worker.counts["dead"], running.worker.counts["aborted"]) == (1, 0)
    assert [fact.command for fact in facts(broker.records(names.events(bank.name)))] == ["first", "last"]
    (dead,) = broker.records(names.dead(bank.name))
    reason = dict(dead.headers)["dead_reason"].decode()
    assert reason.startswith("deciding took 3.")
    assert "a transaction may last 3 s" in reason


def _post(broker: Broker, bank: Bank, commands: dict[str, Any]) -> None:
    producer = broker.producer()
    for id_, command in commands.items():
        one = good(bank, id_, command)
        producer.produce(names.commands(bank.name), one.value, one.key, one.partition, headers=list(one.headers))
    assert producer.flush(SECONDS) == 0
