"""A log of small events with all headers that a processor writes, and a view of it whose fold costs next to nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from confluent_kafka import Producer

from benchmarks.headers import lane_headers
from leftfold import Event, FoldView
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import events, partition_of
from leftfold.ports.codec import MessageCodec

__all__ = ["PARTITIONS", "Balance", "Moved", "balances", "write_movements"]

PARTITIONS, OPEN, LENGTH, DECISION = 12, 5_000, 12, 5_000


class Moved(Event, category="movements", key="account"):
    """An amount came or went."""

    account: str
    reason: str
    count: int
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Balance:
    """Everything that moved, added up."""

    moves: int
    count: int
    total: Decimal


def _add(row: Balance | None, event: Moved) -> Balance:
    if row is None:
        return Balance(1, event.count, event.amount)
    return Balance(row.moves + 1, row.count + event.count, row.total + event.amount)


balances = FoldView("balances", events=Moved, row=Balance, evolve=_add)


def write_movements(settings: KafkaSettings, count: int) -> None:
    """Writes the events in transactions of 5,000, 12 to a stream, 5,000 streams at a time in turns."""
    with ClusterAdmin(settings) as cluster:
        cluster.create(events("movements"), PARTITIONS, 1, EVENTS)
    config = {"transactional.id": "movements", "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings.librdkafka(), **config})
    producer.init_transactions(30)
    codec = MessageCodec([Moved])
    producer.begin_transaction()
    for number, (version, event) in enumerate(_movements(count), 1):
        key = event.account.encode()
        headers = lane_headers(event, event.account, codec.types[Moved], number, version)
        producer.produce(events("movements"), codec.encode(event), key, partition_of(key, PARTITIONS), headers=headers)
        if number % DECISION == 0:
            producer.commit_transaction(60)
            producer.begin_transaction()
    producer.commit_transaction(60)


def _movements(count: int) -> Iterator[tuple[int, Moved]]:
    chance = random.Random(1)  # a repeatable log
    for number in range(count):
        group, place = divmod(number, OPEN * LENGTH)
        turn, account = divmod(place, OPEN)
        amount = Decimal(chance.randrange(-9_999, 99_999)).scaleb(-2)
        yield (
            turn + 1,
            Moved(
                account=f"account-{group * OPEN + account:07d}",
                reason=f"r-{chance.randrange(60_000)}",
                count=chance.randrange(9),
                amount=amount,
            ),
        )
