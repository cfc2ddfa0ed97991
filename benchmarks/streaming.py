"""A streaming fold's time from trigger to trigger, with our settings and with Spark's own, in one session."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import count, islice

from pyspark.sql import SparkSession

from benchmarks.figure import Figure
from benchmarks.logs import MOVEMENTS, PARTITIONS, Moved, Transactions, balances, create
from benchmarks.rebuild import spark_settings
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.views.generations import open_generation
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.ports.flush import Phase
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import spark_session
from leftfold.spark.streaming.projection import TUNED, BatchQuery, tune

__all__ = ["streaming"]

WARM, BATCHES, EVENTS_EACH = 10, 40, 100
PATIENCE = 60.0
STOCK_KAFKA = {"fetch.max.wait.ms": "500"}


def streaming(servers: Servers) -> list[Figure]:
    """Milliseconds of a batch with a transaction of 100 events in it: median and 99th percentile of 40."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    tuned_gc()
    create(kafka, MOVEMENTS)
    with spark_session(spark_settings()) as spark:
        times = Times(spark, kafka, redis)
        for name in TUNED:  # back to what Spark comes with
            spark.conf.unset(name)
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


class Times:
    """Times batches of a query that folds `balances`."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings) -> None:
        self._spark, self._kafka, self._redis = spark, kafka, redis
        self._transactions = Transactions(kafka, MOVEMENTS, Moved, **{"linger.ms": 1})
        # Each event of a transaction is for an account of its own.
        self._log = (
            (
                1 + n // 5_000,
                Moved(account=f"account-{n % 5_000:07d}", reason="trickle", count=1, amount=Decimal("1.00")),
            )
            for n in count(1)
        )

    def of(self, java: dict[str, str]) -> list[float]:
        """Milliseconds of each batch that had events, those at the start left out."""
        store = RedisViewStore(self._redis)
        generation = open_generation(store, balances, {MOVEMENTS: PARTITIONS}, Phase.SEALED)
        driver = MicroBatchDriver(
            balances, generation, store.checkpoints(generation), secrets.token_hex(6),
            open_store=partial(RedisViewStore, self._redis), open_log=partial(KafkaBulkLog, self._kafka),
        )  # fmt: skip
        folded: list[MicroBatchDriver] = []
        query = BatchQuery(self._spark, [driver], store, java, folded.append)
        found: dict[int, float] = {}
        for _ in range(WARM + BATCHES):
            before = len(folded)
            self._transactions.commit(list(islice(self._log, EVENTS_EACH)))
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
