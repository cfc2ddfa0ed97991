"""A writer of commands that means harm: a real worker goes on for everybody else, whatever bytes it is sent."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import KafkaError

from leftfold.engine.processing.process_wire import BARRIER
from leftfold.engine.processing.stream_state import MARK
from leftfold.model import keys as names
from leftfold.ports.codec import header
from leftfold.ports.protocols import RawRecord
from tests.hostility import worsened
from tests.waiting import wait_until
from tests.worker.audit import facts
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import good
from tests.worker.running import Running

pytestmark = pytest.mark.servers

PACKED = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 500
"""Behind so many records comes a batch that is too large to be unpacked."""


@pytest.fixture
def bank(broker: Broker) -> Bank:
    """One whose commands are kept as their writers pack them."""
    bank = broker.bank()
    broker.alter(names.commands(bank.name), compression_type="producer")
    return bank


@pytest.mark.parametrize("cases", [2_500, pytest.param(10_000, marks=pytest.mark.faults)])
def test_whatever_is_written_everybody_else_is_served_and_nothing_is_lost(
    broker: Broker, bank: Bank, cases: int
) -> None:
    rng = random.Random(15)
    reply_to = f"{names.replies(bank.name)}/0".encode()
    topic, mine, taken, bombs = names.commands(bank.name), list[str](), 0, 0
    # A broker refuses what is too large for it, and a worker decides no barrier.
    written: list[KafkaError | None] = []
    writers = [broker.producer(message_max_bytes=20_000_000, compression_type=how) for how in PACKED]
    with Running(bank, broker.address) as running:
        for number in range(cases):
            letter = good(bank, f"case-{number}", bank.deposit(f"account-{number % 20}"), reply_to)
            # How many parts a deposit has is the bank's own loop.
            value = json.dumps({"account": f"account-{number % 20}", "amount": 1}).encode()
            headers = [(name, text or b"") for name, text in letter.headers]
            raw = RawRecord(topic, letter.partition, 0, letter.key, value, headers)
            if number % 100:
                raw = worsened(rng, raw)
            else:
                mine.append(letter.name)
            taken -= raw.key == MARK and header(raw.headers, "ce_type") == BARRIER
            writer = rng.choice(writers)
            writer.produce(
                topic,
                raw.value,
                raw.key,
                raw.partition,
                headers=list(raw.headers),
                on_delivery=lambda error, _: written.append(error),
            )
            writer.poll(0)
            if number % EACH == EACH - 1:
                assert [each.flush(SECONDS) for each in writers] == [0] * len(writers)
                broker.bomb(topic, rng.randrange(PARTITIONS), records=rng.choice([1, 1, 50]))
                bombs += 1
        assert [each.flush(SECONDS) for each in writers] == [0] * len(writers)
        wait_until(lambda: running.going and _decided(broker, bank) >= set(mine), lambda: f"{running.reports[-5:]}")
        ends = broker.ends(topic, committed=True)
        wait_until(
            lambda: running.going and all(left == ends[p] for p, (left, _) in broker.left(bank).items()),
            lambda: f"the last record: {running.reports[-5:]}",
        )
    counts = running.worker.counts
    taken += written.count(None) + bombs
    assert counts["aborted"] == 0
    assert (
        sum(counts[what] for what in ("accepted", "rejected", "duplicates", "late", "failed", "dead"))
        == taken
        > cases * 0.98
    )
    assert counts["accepted"] > cases / 10
    reasons = [header(record.headers, "dead_reason") for record in broker.records(names.dead(bank.name))]
    assert sum(b"a batch of offsets" in reason for reason in reasons) == bombs
    answers = [header(record.headers, "ce_causationid") for record in broker.records(names.replies(bank.name))]
    assert {answer.decode(errors="replace") for answer in answers} >= set(mine)
    with Running(bank, broker.address) as running:
        letter = good(bank, "the next", bank.deposit("account-1"), reply_to)
        writers[0].produce(topic, letter.value, letter.key, letter.partition, headers=list(letter.headers))
        assert writers[0].flush(SECONDS) == 0
        wait_until(
            lambda: running.going and "the next" in _decided(broker, bank), "a successor that reads their states"
        )


def _decided(broker: Broker, bank: Bank) -> set[str]:
    """The ids of the commands that have events."""
    return {fact.command for fact in facts(broker.records(names.events(bank.name)))}
