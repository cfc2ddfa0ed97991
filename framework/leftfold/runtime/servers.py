"""The servers as maintenance commands use them: the view store, the log with its archive, the topics of a category."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkStore, OpenBulkLog, OpenBulkSink, read_to
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import LogReader, RawRecord
from leftfold.runtime.connect import extras, kafka_settings, open_bulk, open_reader, redis_settings
from leftfold.runtime.project import archive_of, unknown

__all__ = [
    "Servers",
    "Workbench",
    "check_addresses",
    "check_broker",
    "last_records",
    "skipped_letters",
    "store_of",
    "topic_in",
    "topic_of",
    "workbench",
]


def topic_of(category: str, kafka: str | None) -> tuple[KafkaSettings, str]:
    """The settings of Kafka and the events topic of a category."""
    settings = kafka_settings(kafka)
    with ClusterAdmin(settings) as cluster:
        topic, _ = topic_in(cluster, category)
    return settings, topic


def topic_in(cluster: Any, category: str) -> tuple[str, int]:
    """The events topic of a category, and its number of partitions.

    Raises:
        Usage: the cluster has no such topic.
        ConfigurationError: the login lacks the right to describe the topic.
    """
    topic = names.events(category)
    # A list of all topics omits those that a login may not see; a request by name gets an error from the broker.
    count: int | None = cluster.partition_counts([topic]).get(topic)
    if count is None:
        known = (name.removesuffix(".events") for name in cluster.topics() if name.endswith(".events"))
        raise unknown("category in the log called", category, known)
    return topic, count


_PATIENCE = 5.0


def last_records(cluster: Any, settings: Any, topic: str, most: int) -> Iterator[RawRecord]:
    """The committed records among the last `most` offsets of each partition; none if the topic does not exist.

    Records behind an open transaction are awaited for five seconds at most.
    """
    if topic not in cluster.partition_counts([topic]):
        return
    starts, ends = cluster.starts([topic]), cluster.ends([topic])
    begin = {p: max(starts.next_offset(topic, p), end - most) for p, end in ends.offsets[topic].items()}
    with closing(KafkaLogReader(settings)) as reader:
        yield from chain.from_iterable(read_to(reader, Position({topic: begin}), ends, patience=_PATIENCE))


def skipped_letters(settings: Any, process: str) -> frozenset[str]:
    """The addresses of records in the process's dead letters, as `topic/partition/offset`: routers skip them."""
    with ClusterAdmin(settings) as cluster:
        letters = last_records(cluster, settings, names.dead(process), sys.maxsize)
        return frozenset(header(letter.headers, "dead_source").decode(errors="replace") for letter in letters)


Servers: TypeAlias = tuple[str | None, str | None, str | None]
"""Kafka, Redis and the archive, as options of a command; None = from the settings."""


@dataclass(frozen=True)
class Workbench:
    """The view store of this process, and factories that can be pickled and sent to tasks."""

    store: BulkStore
    open_log: OpenBulkLog
    open_reader: Callable[[], LogReader]
    open_sink: OpenBulkSink
    open_store: Callable[[], BulkStore]


@contextmanager
def workbench(kafka: str | None, redis: str | None, archive: str | None = None) -> Iterator[Workbench]:
    """A workbench for the given or configured servers and archive; closes its view store at the end."""
    with extras():
        from leftfold.redis import RedisBulkSink, RedisViewStore

    of_kafka, of_redis, past = kafka_settings(kafka), redis_settings(redis), archive_of(archive)
    with closing(RedisViewStore(of_redis)) as store:
        yield Workbench(
            store=store,
            open_log=open_bulk(of_kafka, past),
            open_reader=open_reader(of_kafka, past),
            open_sink=partial(RedisBulkSink, of_redis),
            open_store=partial(RedisViewStore, of_redis),
        )


def check_addresses(kafka: str | None, redis: str | None, archive: str | None = None) -> None:
    """Checks the addresses of the servers, before Spark starts, which takes long.

    Raises:
        ConfigurationError: an address is missing or wrong.
    """
    kafka_settings(kafka), redis_settings(redis), archive_of(archive)


def check_broker(kafka: str | None) -> None:
    """Checks that a broker answers.

    Without the check, a fold that only reads would wait a minute for the first record without a message.

    Raises:
        InfrastructureError: no broker answers.
    """
    with ClusterAdmin(kafka_settings(kafka)) as cluster:
        cluster.brokers()


def store_of(redis: str | None) -> AbstractContextManager[BulkStore]:
    """The view store, for commands that need no log; closes it at the end."""
    with extras():
        from leftfold.redis import RedisViewStore

    return closing(RedisViewStore(redis_settings(redis)))
