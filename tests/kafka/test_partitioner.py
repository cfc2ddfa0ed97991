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


def hostile_keys(count: int = 2000) -> list[bytes]:
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


def test_aiokafka_agrees() -> None:
    partition = DefaultPartitioner()
    every = list(range(PARTITIONS))
    assert all(partition(key, every, every) == partition_of(key, PARTITIONS) for key in hostile_keys())


def test_librdkafkas_own_function_agrees() -> None:
    assert all(confluent_kafka.murmur2(key, PARTITIONS) == partition_of(key, PARTITIONS) for key in hostile_keys())


@pytest.mark.servers
def test_records_of_confluent_kafka_lie_in_the_computed_partition(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    keys = hostile_keys()
    config = {**kafka.librdkafka(), "partitioner": "murmur2_random"}
    assert produced(config, make_topic(PARTITIONS), keys) == {key: partition_of(key, PARTITIONS) for key in keys}


@pytest.mark.servers
def test_twin_without_the_setting_records_lie_elsewhere(kafka: KafkaSettings, make_topic: MakeTopic) -> None:
    keys = hostile_keys()
    places = produced(kafka.librdkafka(), make_topic(PARTITIONS), keys)
    assert sum(places[key] != partition_of(key, PARTITIONS) for key in keys) > len(keys) // 2
