"""The floor of a round trip: a command's records and transaction by the bare client, with nothing decided."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Event
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_STORED, Consumer, Producer, TopicPartition

from benchmarks.writes import EVENT, HEADERS, RECORD
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS, STATE
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import commands, events, state

__all__ = ["ask", "create", "echo"]

NAME, REPLIES, PARTITIONS, WARM = "echo", "echo.replies", 12, 100
PROMPT: Any = {"linger.ms": 0}
READ: Any = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 2}


def create(settings: KafkaSettings) -> None:
    """Makes its topics."""
    with ClusterAdmin(settings) as cluster:
        for topic in (commands(NAME), events(NAME), REPLIES):
            cluster.create(topic, PARTITIONS, 1, EVENTS)
        cluster.create(state(NAME, 1), PARTITIONS, 1, STATE)


def echo(address: str, done: Event) -> None:
    """Answers every command behind a transaction of two state records, an event and an offset."""
    config = KafkaSettings(bootstrap_servers=address).librdkafka()
    writer = Producer({**config, "transactional.id": NAME, "linger.ms": 20})
    writer.init_transactions(30)
    answers = Producer({**config, **PROMPT})
    reader = Consumer({**config, **READ, "group.id": NAME})
    reader.assign([TopicPartition(commands(NAME), p, OFFSET_STORED) for p in range(PARTITIONS)])
    while not done.is_set():
        message: Any = reader.poll(0.1)
        if message is None:
            continue
        partition, key = message.partition(), message.key()
        writer.begin_transaction()
        writer.produce(state(NAME, 1), RECORD, b"@", partition)
        writer.produce(events(NAME), EVENT, key, partition, headers=list(HEADERS))
        writer.produce(state(NAME, 1), RECORD, key, partition)
        taken = [TopicPartition(commands(NAME), partition, message.offset() + 1)]
        writer.send_offsets_to_transaction(taken, reader.consumer_group_metadata(), 30)
        writer.commit_transaction(30)
        answers.produce(REPLIES, EVENT, key, 0, headers=list(HEADERS))
        answers.poll(0)


def ask(settings: KafkaSettings, count: int) -> list[float]:
    """Seconds from sending a command to having its answer, one at a time, once all is warm."""
    sender = Producer({**settings.librdkafka(), **PROMPT})
    reader = Consumer({**settings.librdkafka(), **READ, "group.id": f"{NAME}-client"})
    reader.assign([TopicPartition(REPLIES, 0, 0)])
    name, times = uuid4().hex.encode(), []
    for number in range(WARM + count):
        key = b"%s-%d" % (name, number)
        began = time.perf_counter()
        sender.produce(commands(NAME), EVENT, key, number % PARTITIONS, headers=list(HEADERS))
        sender.poll(0)
        answer: Any = None
        while answer is None or answer.key() != key:
            answer = reader.poll(60.0)
        times.append(time.perf_counter() - began)
    return times[WARM:]
