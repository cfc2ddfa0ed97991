"""A streaming fold's time from trigger to trigger, with our settings and with Spark's own, in one session."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks.figure import Figure
from benchmarks.headers import lane_headers
from benchmarks.small_events import PARTITIONS, Moved, balances
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.views.generations import open_generation
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import EVENTS
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers, java_home, spark_jars
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.codec import MessageCodec
from leftfold.ports.flush import Phase
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.streaming.projection import TUNED, tune
from leftfold.spark.streaming.query import BatchQuery, QueryOptions

__all__ = ["run"]

WARM, BATCHES, EVENTS_EACH = 10, 40, 100
PATIENCE = 60.0
STOCK_KAFKA = {"fetch.max.wait.ms": "500"}
TOPIC = names.events("movements")


def run(servers: Servers) -> list[Figure]:
    """Milliseconds of a batch with a transaction of 100 events in it: median and 99th percentile of 40."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    tuned_gc()
    with ClusterAdmin(kafka) as cluster:
        cluster.create(TOPIC, PARTITIONS, 1, EVENTS)
    trickle = Trickle(kafka)
    settings = SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars())
    with spark_session(settings) as spark:
        times = Times(spark, kafka, redis, trickle)
        untune(spark)
        stock = times.of({**kafka.java(), **STOCK_KAFKA})
        session = times.of(kafka.java())
        tune(spark)
        ours = times.of(kafka.java())
    note = f"a transaction of {EVENTS_EACH} events a batch, {PARTITIONS} partitions; peer: the same job, stock settings"
    asked = "peer: stock settings of the session, our settings of the consumer"
    return [
        Figure("streaming.trigger_p50", _at(ours, 50), "ms", peer=_at(stock, 50), goal=0.4, smaller=True, note=note),
        Figure("streaming.trigger_p99", _at(ours, 99), "ms", peer=_at(stock, 99), smaller=True),
        Figure("streaming.session_p50", _at(ours, 50), "ms", peer=_at(session, 50), smaller=True, note=asked),
    ]


def untune(spark: SparkSession) -> None:
    """Gives the session back what Spark comes with."""
    for name in TUNED:
        spark.conf.unset(name)


class Trickle:
    """Writes small transactions of movements."""

    def __init__(self, kafka: KafkaSettings) -> None:
        config = {**kafka.librdkafka(), "transactional.id": "trickle", "linger.ms": 1}
        self._producer, self._codec, self._number = Producer(config), MessageCodec([Moved]), 0
        self._producer.init_transactions(30)

    def write(self) -> None:
        """One transaction, each of its events for an account of its own."""
        self._producer.begin_transaction()
        for _ in range(EVENTS_EACH):
            self._number += 1
            account = f"account-{self._number % 5_000:07d}"
            event = Moved(account=account, reason="trickle", count=1, amount=Decimal("1.00"))
            key = account.encode()
            headers: Any = lane_headers(
                event, event.account, self._codec.types[Moved], self._number, 1 + self._number // 5_000
            )
            self._producer.produce(
                TOPIC, self._codec.encode(event), key, partition_of(key, PARTITIONS), headers=headers
            )
        self._producer.commit_transaction(60)


class Times:
    """Times batches of a query that folds `balances`."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings, trickle: Trickle) -> None:
        self._spark, self._kafka, self._redis, self._trickle = spark, kafka, redis, trickle

    def of(self, java: dict[str, str]) -> list[float]:
        """Milliseconds of each batch that had events, those at the start left out."""
        store = RedisViewStore(self._redis)
        generation = open_generation(store, balances, {TOPIC: PARTITIONS}, Phase.SEALED)
        course = MicroBatchDriver(
            balances, generation, store.checkpoints(generation), secrets.token_hex(6),
            open_store=partial(RedisViewStore, self._redis), open_log=partial(KafkaBulkLog, self._kafka),
        )  # fmt: skip
        folded: list[MicroBatchDriver] = []
        query = BatchQuery(self._spark, [course], store, QueryOptions(java), folded.append)
        found: dict[int, float] = {}
        for _ in range(WARM + BATCHES):
            before = len(folded)
            self._trickle.write()
            _wait(lambda at=before: query.wait(0.01) or len(folded) > at)  # type: ignore[misc]
            for progress in query.query.recentProgress:
                if progress.numInputRows:
                    found[progress.batchId] = float(progress.durationMs["triggerExecution"])
        query.close()
        store.unlink(generation)
        store.close()
        return [took for _, took in sorted(found.items())][WARM:]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"no batch came within {PATIENCE:g} s")


def _at(times: list[float], percent: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]
