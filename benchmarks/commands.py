"""Commands that processors decide and commit a second, how long one takes from send to receipt, and the ceilings.

The ceilings are a command's records in its transactions, written by the same client with nothing decided.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.synchronize import Barrier, Event
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_STORED, Consumer, Producer, TopicPartition

from benchmarks.figure import Figure
from benchmarks.workers import CONTEXT, as_thread_event, beside, decided, feed, serving
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS, STATE, ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model import keys as names
from services.baskets.app import app
from services.baskets.commands import AddItem, OpenBasket

__all__ = ["commands", "latency"]

MANY, FEW, BATCH = 200_000, 1_000, 16_000
COUNT, PARTS, WARM = 1_000, 4, 100


def commands(servers: Servers) -> list[Figure]:
    """The processor at full load, without and with answers to clients, and with one command a transaction.

    The first commands only warm the broker up.
    """
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    tuned_gc()
    fed = 0

    def fed_next(count: int, reply_to: bytes = b"") -> int:
        nonlocal fed
        feed(settings, count, reply_to=reply_to, skip=fed)
        fed += count
        return count

    decided(settings, fed_next(MANY))
    ours = max(decided(settings, fed_next(MANY)) for _ in range(3))
    answered = decided(settings, fed_next(MANY, b"baskets.replies/0"))
    ceiling = max(_writes_alone(settings) for _ in range(3))
    peer = max(decided(settings, fed_next(FEW), batch=1) for _ in range(2))
    shared = _share(settings, lambda: fed_next(2 * MANY))
    alone = "one lane; the peer writes the same records in the same transactions and decides nothing"
    single = "peer: one command a transaction"
    return [
        Figure("commands.committed", shared, "commands/s", goal=40_000, note="two workers share the two cores"),
        Figure("commands.one_lane", ours, "commands/s", peer=ceiling, note=alone),
        Figure("commands.answered", answered, "commands/s", note="one lane, every command with a client that waits"),
        Figure("commands.group_commit", ours, "commands/s", peer=peer, goal=250, note=single),
    ]


def _share(settings: KafkaSettings, fill: Callable[[], int]) -> float:
    """Two processes serve half of the partitions each, and begin at once when all commands are there."""
    ready, begin, counts = CONTEXT.Barrier(3), CONTEXT.Barrier(3), CONTEXT.Array("l", 2)
    args = (settings.bootstrap_servers, ready, begin, counts)
    with beside((_decide_half, *args, 0), (_decide_half, *args, 1)):
        ready.wait()
        count = fill()
        begin.wait()
        began = time.perf_counter()
        while counts[0] + counts[1] < count:
            time.sleep(0.01)
        return float(count / (time.perf_counter() - began))


def _decide_half(stop: Event, address: str, ready: Barrier, begin: Barrier, counts: Any, number: int) -> None:
    worker = serving(KafkaSettings(bootstrap_servers=address), app, "baskets", share=2)
    ready.wait()
    begin.wait()
    while not stop.is_set():
        counts[number] += worker.step()
    worker.close()


def latency(servers: Servers) -> list[Figure]:
    """One client, one command at a time, a worker in a process of its own; and the same records by the bare client."""
    settings = KafkaSettings(bootstrap_servers=servers.kafka)
    ensure(app, settings)
    _create_topics(settings)
    times, floor = list[float](), list[float]()
    for part in range(PARTS):
        with beside((_echo, servers.kafka)):
            floor += _echo_times(settings)
        with beside((_work, servers.kafka)):
            times += _round_trips(settings, part)
    note = "peer: the bare client with the same records and transactions decides nothing"
    median, least = statistics.median(times) * 1000, statistics.median(floor) * 1000
    rate = len(times) / sum(times)
    return [
        Figure("commands.round_trip", median, "ms", peer=least, smaller=True, note=note),
        Figure("commands.round_trip_p50", median, "ms", goal=3.5, smaller=True),
        Figure("commands.round_trip_p99", sorted(times)[int(len(times) * 0.99)] * 1000, "ms"),
        Figure("commands.one_by_one", rate, "commands/s", goal=280, note="one client waits for each"),
    ]


def _work(stop: Event, address: str) -> None:
    serving(KafkaSettings(bootstrap_servers=address), app, "baskets", as_thread_event(stop)).run()


def _round_trips(settings: KafkaSettings, part: int) -> list[float]:
    at = datetime(2017, 1, 1, tzinfo=UTC)
    times = []
    with KafkaClient(app.name, settings) as client:
        for basket in range((WARM + COUNT // PARTS) // 10):
            name = f"latency-{part}-{basket}"
            client.send(OpenBasket(basket_id=name, at=at, household_id="h", store_id="s"), timeout=60.0)
            for item in range(10):
                command = AddItem(basket_id=name, at=at, product_id=str(item), quantity=1, sales_value=Decimal("1.00"))
                began = time.perf_counter()
                client.send(command)
                times.append(time.perf_counter() - began)
    return times[WARM:]


PARTITIONS, BARE, REPLIES = 12, "nothing", "nothing.replies"
COMMANDS_TOPIC, EVENTS_TOPIC, STATE_TOPIC = names.commands(BARE), names.events(BARE), names.state(BARE, 1)
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
PROMPT: Any = {"linger.ms": 0}
READ: Any = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.queue.backoff.ms": 2}


def _create_topics(settings: KafkaSettings) -> None:
    with ClusterAdmin(settings) as cluster:
        for topic in (COMMANDS_TOPIC, EVENTS_TOPIC, REPLIES):
            cluster.create(topic, PARTITIONS, 1, EVENTS)
        cluster.create(STATE_TOPIC, PARTITIONS, 1, STATE)


def _bare_writer(settings: KafkaSettings) -> Producer:
    config = {"transactional.id": BARE, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings.librdkafka(), **config})
    producer.init_transactions(30)
    return producer


def _writes_alone(settings: KafkaSettings) -> float:
    """Commands a second, if deciding took no time: an event each, and a state for every tenth."""
    _create_topics(settings)
    producer = _bare_writer(settings)
    group = Consumer({**settings.librdkafka(), "group.id": BARE}).consumer_group_metadata()
    began = time.perf_counter()
    for start in range(0, MANY, BATCH):
        producer.begin_transaction()
        for number in range(start, start + BATCH):
            key, partition = b"%d" % number, number % PARTITIONS
            producer.produce(EVENTS_TOPIC, EVENT, key, partition, headers=list(HEADERS))
            if not number % 10:
                producer.produce(STATE_TOPIC, RECORD, key, partition)
        offsets = [TopicPartition(COMMANDS_TOPIC, p, start) for p in range(PARTITIONS)]
        producer.send_offsets_to_transaction(offsets, group, 30)
        producer.commit_transaction(30)
    return MANY / (time.perf_counter() - began)


def _echo(stop: Event, address: str) -> None:
    """Answers every command behind a transaction of two state records, an event and an offset."""
    settings = KafkaSettings(bootstrap_servers=address)
    writer, answers = _bare_writer(settings), Producer({**settings.librdkafka(), **PROMPT})
    reader = Consumer({**settings.librdkafka(), **READ, "group.id": BARE})
    reader.assign([TopicPartition(COMMANDS_TOPIC, p, OFFSET_STORED) for p in range(PARTITIONS)])
    while not stop.is_set():
        message: Any = reader.poll(0.1)
        if message is None:
            continue
        partition, key = message.partition(), message.key()
        writer.begin_transaction()
        writer.produce(STATE_TOPIC, RECORD, b"@", partition)
        writer.produce(EVENTS_TOPIC, EVENT, key, partition, headers=list(HEADERS))
        writer.produce(STATE_TOPIC, RECORD, key, partition)
        taken = [TopicPartition(COMMANDS_TOPIC, partition, message.offset() + 1)]
        writer.send_offsets_to_transaction(taken, reader.consumer_group_metadata(), 30)
        writer.commit_transaction(30)
        answers.produce(REPLIES, EVENT, key, 0, headers=list(HEADERS))
        answers.poll(0)


def _echo_times(settings: KafkaSettings) -> list[float]:
    """Seconds from sending a command to having its answer, one at a time, once all is warm."""
    sender = Producer({**settings.librdkafka(), **PROMPT})
    reader = Consumer({**settings.librdkafka(), **READ, "group.id": f"{BARE}-client"})
    reader.assign([TopicPartition(REPLIES, 0, 0)])
    name, times = uuid4().hex.encode(), []
    for number in range(WARM + COUNT // PARTS):
        key = b"%s-%d" % (name, number)
        began = time.perf_counter()
        sender.produce(COMMANDS_TOPIC, EVENT, key, number % PARTITIONS, headers=list(HEADERS))
        sender.poll(0)
        answer: Any = None
        while answer is None or answer.key() != key:
            answer = reader.poll(60.0)
        times.append(time.perf_counter() - began)
    return times[WARM:]
