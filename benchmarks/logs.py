"""Two logs of small events with all headers that a processor writes, and views whose folds cost next to nothing.

Purses: what a live projector folds, by the key of the stream and by another. Movements: what a rebuild folds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

from confluent_kafka import Producer

from leftfold import Event, FoldView
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import events, partition_of
from leftfold.ports.message_codec import MessageCodec, event_id

__all__ = [
    "MOVEMENTS",
    "PARTITIONS",
    "PURSES",
    "Balance",
    "Moved",
    "Spent",
    "Total",
    "Transactions",
    "balances",
    "create",
    "purses",
    "shops",
    "spendings",
    "write_movements",
    "write_spendings",
]

PARTITIONS, TRANSACTION = 12, 5_000
PURSES, MOVEMENTS = events("purses"), events("movements")


def create(settings: KafkaSettings, topic: str) -> None:
    """Creates a topic of events."""
    with ClusterAdmin(settings) as cluster:
        cluster.create(topic, PARTITIONS, 1, EVENTS)


class Transactions:
    """Writes events of one class in transactions, as a processor does.

    Args:
        options: of the producer.
    """

    def __init__(self, settings: KafkaSettings, topic: str, kind: type[Event], **options: Any) -> None:
        config = {"transactional.id": topic, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000, **options}
        self._producer = Producer({**settings.librdkafka(), **config})
        self._producer.init_transactions(30)
        self._topic, self._codec, self._kind, self._written = topic, MessageCodec([kind]), kind, 0

    def commit(self, log: Sequence[tuple[int, Event]], on_last: Callable[[object, Any], None] | None = None) -> None:
        """One transaction of these events, each with its version.

        Args:
            on_last: called when the last of them is delivered.
        """
        field, type_ = self._kind.__leftfold__.key, self._codec.types[self._kind]
        self._producer.begin_transaction()
        for version, event in log:
            self._written += 1
            key = getattr(event, field)
            headers = _headers(event, key, type_, self._written, version)
            more: Any = {"on_delivery": on_last} if on_last is not None and event is log[-1][1] else {}
            value, place = self._codec.encode(event), partition_of(key.encode(), PARTITIONS)
            self._producer.produce(self._topic, value, key.encode(), place, headers=headers, **more)
        self._producer.commit_transaction(60)


def _headers(event: Event, key: str, type_: bytes, number: int, version: int) -> Any:
    """All eleven that a processor gives to the `number`-th event of a log, the `version`-th of its stream."""
    command = str(UUID(int=number)).encode()
    category = type(event).__leftfold__.category
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id(category, key, command.decode(), 0).encode()),
        ("ce_source", b"/benchmarks/" + category.encode()),
        ("ce_type", type_),
        ("ce_subject", key.encode()),
        ("ce_time", b"2026-01-01T00:00:00.%06dZ" % (number % 1_000_000)),
        ("ce_sequence", b"%d" % version),
        ("ce_decision", b"1/1"),
        ("ce_correlationid", command),
        ("ce_causationid", command),
        ("content-type", b"application/json"),
    ]


def _write(settings: KafkaSettings, topic: str, kind: type[Event], log: Iterable[tuple[int, Event]]) -> None:
    create(settings, topic)
    rest, transactions = iter(log), Transactions(settings, topic, kind)
    while some := list(islice(rest, TRANSACTION)):
        transactions.commit(some)


class Spent(Event, category="purses", key="purse"):
    """A payment."""

    purse: str
    shop: str
    cents: int


@dataclass(frozen=True, slots=True)
class Total:
    """Everything that was paid, added up."""

    cents: int


def _add_cents(row: Total | None, event: Spent) -> Total:
    return Total(event.cents if row is None else row.cents + event.cents)


purses = FoldView("purses", events=Spent, row=Total, evolve=_add_cents)
shops = FoldView("shops", events=Spent, row=Total, key=lambda event: event.shop, evolve=_add_cents)
KEYS, SHOPS = 20_000, 20_000


def spendings(count: int) -> Iterator[tuple[int, Spent]]:
    """The events in their order, each with its place in its stream; the same ones every time."""
    chance = random.Random(1)
    versions = [0] * KEYS
    for _ in range(count):
        purse = chance.randrange(KEYS)
        versions[purse] += 1
        shop = f"shop-{chance.randrange(SHOPS):05d}"
        yield versions[purse], Spent(purse=f"purse-{purse:05d}", shop=shop, cents=chance.randrange(1, 10_000))


def write_spendings(settings: KafkaSettings, count: int, topic: str = PURSES) -> int:
    """Writes that many; returns how many different keys they have."""
    _write(settings, topic, Spent, spendings(count))
    return len({event.purse for _, event in spendings(count)})


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


def _add_movement(row: Balance | None, event: Moved) -> Balance:
    if row is None:
        return Balance(1, event.count, event.amount)
    return Balance(row.moves + 1, row.count + event.count, row.total + event.amount)


balances = FoldView("balances", events=Moved, row=Balance, evolve=_add_movement)
OPEN, LENGTH = 5_000, 12


def write_movements(settings: KafkaSettings, count: int) -> None:
    """Writes that many, 12 to a stream, 5,000 streams at a time in turns."""
    _write(settings, MOVEMENTS, Moved, _movements(count))


def _movements(count: int) -> Iterator[tuple[int, Moved]]:
    chance = random.Random(1)  # a repeatable log
    for number in range(count):
        group, place = divmod(number, OPEN * LENGTH)
        turn, account = divmod(place, OPEN)
        amount = Decimal(chance.randrange(-9_999, 99_999)).scaleb(-2)
        reason, many = f"r-{chance.randrange(60_000)}", chance.randrange(9)
        name = f"account-{group * OPEN + account:07d}"
        yield turn + 1, Moved(account=name, reason=reason, count=many, amount=amount)
