"""A writer of commands that means harm: a real worker goes on for everybody else, whatever bytes it is sent."""

from __future__ import annotations

import json
import random

import pytest

from leftfold import names
from leftfold.codec import header
from leftfold.engine.inputs import BARRIER
from leftfold.engine.statemark import MARK
from leftfold.ports import RawRecord
from tests.hostility import worsened
from tests.worker.audit import facts
from tests.worker.bank import Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import good
from tests.worker.running import Running
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

CASES = 2_500


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


def test_whatever_is_written_everybody_else_is_served_and_nothing_is_lost(broker: Broker, bank: Bank) -> None:
    rng = random.Random(15)
    reply_to = f"{names.replies(bank.name)}/0".encode()
    topic, mine, passed = names.commands(bank.name), list[str](), 0
    producer = broker.producer(message_max_bytes=2_000_000)
    with Running(bank, broker.address) as running:
        for number in range(CASES):
            letter = good(bank, f"case-{number}", bank.deposit(f"account-{number % 20}"), reply_to)
            # How many parts a deposit has is the bank's own loop.
            value = json.dumps({"account": f"account-{number % 20}", "amount": 1}).encode()
            headers = [(name, text or b"") for name, text in letter.headers]
            raw = RawRecord(topic, letter.partition, 0, letter.key, value, headers)
            if number % 100:
                raw = worsened(rng, raw)
            else:
                mine.append(letter.name)
            passed += raw.key == MARK and header(raw.headers, "ce_type") == BARRIER
            producer.produce(topic, raw.value, raw.key, raw.partition, headers=list(raw.headers))
            producer.poll(0)
        assert producer.flush(SECONDS) == 0
        wait_until(lambda: running.going and _decided(broker, bank) >= set(mine), lambda: f"{running.reports[-5:]}")
        ends = broker.ends(topic, committed=True)
        wait_until(
            lambda: running.going and all(left == ends[p] for p, (left, _) in broker.left(bank).items()),
            lambda: f"the last record: {running.reports[-5:]}",
        )
    counts, taken = running.worker.counts, len(broker.records(topic)) - passed  # a broker refuses what is too large
    assert counts["aborted"] == 0
    assert (
        sum(counts[what] for what in ("accepted", "rejected", "duplicates", "late", "failed", "dead"))
        == taken
        > CASES - 50
    )
    assert counts["accepted"] > CASES / 10
    answers = [header(record.headers, "ce_causationid") for record in broker.records(names.replies(bank.name))]
    assert {answer.decode(errors="replace") for answer in answers} >= set(mine)
    with Running(bank, broker.address) as running:
        letter = good(bank, "the next", bank.deposit("account-1"), reply_to)
        producer.produce(topic, letter.value, letter.key, letter.partition, headers=list(letter.headers))
        assert producer.flush(SECONDS) == 0
        wait_until(
            lambda: running.going and "the next" in _decided(broker, bank), "a successor that reads their states"
        )


def _decided(broker: Broker, bank: Bank) -> set[str]:
    """The ids of the commands that have events."""
    return {fact.command for fact in facts(broker.records(names.events(bank.name)))}
