"""The ceiling of a processor: its records in its transactions, written by the same client, with nothing decided."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS, STATE
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import commands, events, state

__all__ = ["writes_alone"]

PARTITIONS, NAME = 12, "nothing"
EVENT, RECORD = b"v" * 160, b"v" * 400
HEADERS: Any = [
    ("ce_specversion", b"1.0"),
    ("ce_id", b"0" * 36),
    ("ce_source", b"/baskets/baskets"),
    ("ce_type", b"baskets.ItemAdded.v1"),
    ("ce_subject", b"31198459904"),
    ("ce_time", b"2017-01-01T11:53:26Z"),
    ("ce_sequence", b"7"),
    ("ce_decision", b"1/1"),
    ("ce_correlationid", b"0" * 20),
    ("ce_causationid", b"0" * 20),
    ("content-type", b"application/json"),
]


def writes_alone(settings: KafkaSettings, count: int, batch: int) -> float:
    """Commands a second, if deciding took no time: an event each, and a state for every tenth."""
    with ClusterAdmin(settings) as cluster:
        cluster.create(commands(NAME), PARTITIONS, 1, EVENTS)
        cluster.create(events(NAME), PARTITIONS, 1, EVENTS)
        cluster.create(state(NAME, 1), PARTITIONS, 1, STATE)
    config = {"transactional.id": NAME, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings.librdkafka(), **config})
    producer.init_transactions(30)
    group = Consumer({**settings.librdkafka(), "group.id": NAME}).consumer_group_metadata()
    topic, states, began = events(NAME), state(NAME, 1), time.perf_counter()
    for start in range(0, count, batch):
        producer.begin_transaction()
        for number in range(start, start + batch):
            key, partition = b"%d" % number, number % PARTITIONS
            producer.produce(topic, EVENT, key, partition, headers=list(HEADERS))
            if not number % 10:
                producer.produce(states, RECORD, key, partition)
        offsets = [TopicPartition(commands(NAME), p, start) for p in range(PARTITIONS)]
        producer.send_offsets_to_transaction(offsets, group, 30)
        producer.commit_transaction(30)
    return count / (time.perf_counter() - began)
