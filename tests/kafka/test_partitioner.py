"""Every client library that writes our topics puts a key where our own partitioner says it is."""

from __future__ import annotations

import random
from collections.abc import Iterable

import confluent_kafka
import pytest
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import Message, Producer

from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from tests.kafka.conftest import MakeTopic

PARTITIONS = 7


def hostile_keys(count: int = 1000) -> list[bytes]:
    """Keys of all lengths and bytes, from one seed: text, control characters, UTF-8 of every plane, noise."""
    seeded = random.Random(20170101)
    keys = {b"b-1", "s-ü".encode(), "🥕".encode(), b"{tag}", b"\r\n", b"\x00", b"../x", b"*", b"\xff" * 5, b" "}
    while len(keys) < count:
        keys.add(seeded.randbytes(seeded.choice([1, 2, 3, 4, 5, 7, 8, 36, 255, 1000])))
    return sorted(keys)


def produced(config: dict[str, object], topic: str, keys: Iterable[bytes]) -> dict[bytes, int]:
    """Where a confluent-kafka producer puts the keys."""
    places: dict[bytes, int] = {}

    def delivered(error: object, message: Message) -> None:
        assert error is None
        places[bytes(message.key() or b"")] = int(message.partition() or 0)

    producer = Producer(config)
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(240.0) == 0
    return places


def test_clients_that_compute_a_partition_agree() -> None:
    partition, every, keys = DefaultPartitioner(), list(range(PARTITIONS)), hostile_keys()
    assert all(partition(key, every, every) == partition_of(key, PARTITIONS) for key in keys)
    assert all(confluent_kafka.murmur2(key, PARTITIONS) == partition_of(key, PARTITIONS) for key in keys)


@pytest.mark.servers
@pytest.mark.parametrize("is_set", [True, False])
def test_records_of_confluent_kafka_lie_in_the_computed_partition(
    kafka: KafkaSettings, make_topic: MakeTopic, is_set: bool
) -> None:
    """The twin goes without the setting, and most records lie elsewhere."""
    keys, config = hostile_keys(), kafka.librdkafka()
    places = produced({**config, "partitioner": "murmur2_random"} if is_set else config, make_topic(PARTITIONS), keys)
    astray = sum(places[key] != partition_of(key, PARTITIONS) for key in keys)
    assert (astray == 0) if is_set else (astray > len(keys) // 2)
