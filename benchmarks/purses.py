"""A log of small events over 20,000 keys, two views that add them up, and nothing else: what a live projector folds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

from benchmarks.headers import lane_headers
from leftfold import Event, FoldView
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import events, partition_of
from leftfold.ports.codec import MessageCodec

__all__ = ["PARTITIONS", "TOPIC", "Spent", "create", "purses", "shops", "spendings", "write_spendings"]

PARTITIONS, KEYS, SHOPS, TRANSACTION = 12, 20_000, 20_000, 5_000


class Spent(Event, category="purses", key="purse"):
    """Somebody paid."""

    purse: str
    shop: str
    cents: int


TOPIC = events("purses")


@dataclass(frozen=True, slots=True)
class Total:
    """Everything that was paid, added up."""

    cents: int


def _add(row: Total | None, event: Spent) -> Total:
    return Total(event.cents if row is None else row.cents + event.cents)


purses = FoldView("purses", events=Spent, row=Total, evolve=_add)
shops = FoldView("shops", events=Spent, row=Total, key=lambda event: event.shop, evolve=_add)


def spendings(count: int) -> Iterator[tuple[int, Spent]]:
    """The events in their order, each with its place in its stream; the same ones every time."""
    chance = random.Random(1)
    versions = [0] * KEYS
    for _ in range(count):
        purse = chance.randrange(KEYS)
        versions[purse] += 1
        shop = f"shop-{chance.randrange(SHOPS):05d}"
        yield versions[purse], Spent(purse=f"purse-{purse:05d}", shop=shop, cents=chance.randrange(1, 10_000))


def create(settings: KafkaSettings, topic: str) -> None:
    """Creates the topic of the events, or another one to be used like it."""
    with ClusterAdmin(settings) as cluster:
        cluster.create(topic, PARTITIONS, 1, EVENTS)


def write_spendings(settings: KafkaSettings, count: int, topic: str = TOPIC) -> int:
    """Writes that many in transactions of 5,000; returns how many different keys they have."""
    create(settings, topic)
    config = {"transactional.id": topic, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings.librdkafka(), **config})
    producer.init_transactions(30)
    codec, keys = MessageCodec([Spent]), set()
    producer.begin_transaction()
    for number, (version, event) in enumerate(spendings(count), 1):
        key = event.purse.encode()
        keys.add(key)
        headers = lane_headers(event, event.purse, codec.types[Spent], number, version)
        producer.produce(topic, codec.encode(event), key, partition_of(key, PARTITIONS), headers=headers)
        if number % TRANSACTION == 0:
            producer.commit_transaction(60)
            producer.begin_transaction()
    producer.commit_transaction(60)
    return len(keys)
