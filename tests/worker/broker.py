"""The broker under the workers, and what a test does to it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AdminClient,
    NewPartitions,
)

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.protocols import RawRecord
from tests.servers import alter_topic, patient
from tests.settled import committed
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import PARTITIONS, Bank, bank

__all__ = ["Broker"]


@dataclass(frozen=True)
class Broker:
    """A real broker with three listeners: one direct, two behind proxies, where clients stay.

    Args:
        proxied: behind the proxy of one test, which can fault requests. distant: behind one that adds latency.
        behind: the port of the listener that a proxy forwards to.
    """

    address: str
    proxied: str
    distant: str
    behind: int
    data: Path

    @property
    def settings(self) -> KafkaSettings:
        """How to reach it."""
        return patient(self.address)

    def bank(self, *, version: int = 1, partitions: int = PARTITIONS) -> Bank:
        """A bank of its own, with its topics."""
        return self.opened(bank(f"bank-{uuid4().hex[:8]}", version=version, partitions=partitions))

    def opened(self, one: Bank) -> Bank:
        """The same bank, with its topics."""
        ensure(one.app, self.settings)
        return one

    def ends(self, topic: str, *, committed: bool) -> dict[int, int]:
        """The last stable offsets or the high watermarks."""
        with ClusterAdmin(self.settings) as cluster:
            return dict((cluster.stable_ends if committed else cluster.ends)([topic]).offsets[topic])

    def starts(self, topic: str) -> dict[int, int]:
        """The first offsets."""
        with ClusterAdmin(self.settings) as cluster:
            return dict(cluster.starts([topic]).offsets[topic])

    def records(self, topic: str) -> list[RawRecord]:
        """Everything in a topic that is committed now, each partition in order."""
        return committed(self.settings, topic, now=True)

    def settled(self, topic: str) -> list[RawRecord]:
        """Everything in a topic once nothing is open in it: a commit returns before its markers are written."""
        return committed(self.settings, topic)

    def left(self, one: Bank) -> dict[int, tuple[int, str]]:
        """The stable committed offset and metadata of each partition of the commands."""
        with closing(self._member(one)) as consumer:
            places = [TopicPartition(names.commands(one.name), p) for p in range(one.app.partitions)]
            return {tp.partition: (tp.offset, tp.metadata or "") for tp in consumer.committed(places, WAIT_SECONDS)}

    def leave(self, one: Bank, left: Mapping[int, tuple[int, str]]) -> None:
        """Commits offsets and metadata as the last owner of these partitions, while the group is empty."""
        places = [
            TopicPartition(names.commands(one.name), p, offset, reported) for p, (offset, reported) in left.items()
        ]
        with closing(self._member(one)) as consumer:
            consumer.commit(offsets=places, asynchronous=False)

    def wipe(self, topic: str, before: Mapping[int, int] | None = None) -> None:
        """Deletes the records of a topic up to some offsets; all of them when none are named."""
        ends = self.ends(topic, committed=False) if before is None else before
        places = [TopicPartition(topic, p, end) for p, end in ends.items()]
        with ClusterAdmin(self.settings) as cluster:
            policy = cluster.configs([topic])[topic]["cleanup.policy"]
        self.alter(topic, cleanup_policy="delete")
        admin = AdminClient(self.settings.librdkafka())
        wait_until(lambda: _deleted(admin, places), f"{topic} to allow deletion")
        self.alter(topic, cleanup_policy=policy)

    def alter(self, topic: str, **config: str) -> None:
        """Changes a topic's configuration and waits until it is known; `_` in a name stands for a dot."""
        alter_topic(self.settings, topic, {name.replace("_", "."): value for name, value in config.items()})

    def add_partitions(self, topic: str, total: int) -> None:
        """Raises the number of partitions of a topic and waits until it is known."""
        admin = AdminClient(self.settings.librdkafka())
        _wait(admin.create_partitions([NewPartitions(topic, total)]))
        with ClusterAdmin(self.settings) as cluster:
            wait_until(lambda: cluster.partitions(topic) == total, f"{total} partitions of {topic}")

    def producer(self, **config: Any) -> Producer:
        """A raw producer."""
        plain = {**self.settings.librdkafka(), "partitioner": "murmur2_random", "log_level": 0}
        return Producer({**plain, **{name.replace("_", "."): value for name, value in config.items()}})

    def bomb(self, topic: str, partition: int, *, records: int = 1) -> int:
        """Writes one batch of 110 MB, packed to a few kB; returns the offset that it begins at."""
        before = self.ends(topic, committed=False)[partition]
        producer = self.producer(
            compression_type="zstd",
            message_max_bytes=1_000_000_000,
            batch_size=2_000_000_000,
            queue_buffering_max_kbytes=1_000_000,
            linger_ms=60_000,
        )
        for _ in range(records):
            producer.produce(topic, bytes(110_000_000 // records), b"boom", partition)
        assert producer.flush(WAIT_SECONDS) == 0
        assert self.ends(topic, committed=False)[partition] == before + records
        return before

    def _member(self, one: Bank) -> Consumer:
        """What asks and commits in the name of the bank's workers."""
        return Consumer({**self.settings.librdkafka(), "group.id": one.group, "enable.auto.commit": False})


def _wait(asked: Mapping[Any, Future[Any]]) -> None:
    for future in asked.values():
        future.result(WAIT_SECONDS)


def _deleted(admin: AdminClient, places: list[TopicPartition]) -> bool:
    """Deletes records, unless the broker has not heard yet that it may."""
    try:
        _wait(admin.delete_records(places))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.POLICY_VIOLATION:
            raise
        return False
    return True
