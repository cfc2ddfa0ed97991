"""Streams of Spark on a topic whose past is in the archive, and what to hold them against."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from redis import Redis

from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import Agreement
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.protocols import Report
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark.queries.query_refresh import query_runner
from leftfold.spark.streaming.projection import ViewStream
from tests.archive.past import TOPIC, Past
from tests.domains.ledger import app, by_owner, summary
from tests.servers import secret_url
from tests.spark.queries.streams import Streaming, agreement_of, places, ports_of
from tests.spark.queries.views import owner_sums
from tests.waiting import step_until, wait_until

__all__ = ["Stopped"]

FIRST_DATABASE = 5
"""Those before it are of the tests without Spark."""


@dataclass
class Stopped:
    """The ledgers App with its past in an archive only, and a Spark session."""

    past: Past
    spark: SparkSession

    def __post_init__(self) -> None:
        self._others: list[Past] = []
        self.behind = self.elsewhere(0)
        """Another Redis database, whose rows of the App's views stand before the start of the topic."""

    def make(self) -> None:
        """Builds rows from archive and topic; then all that they hold, and more, is archived and trimmed."""
        for view in (summary, by_owner):
            self.behind.rebuild(view, self.past.log).run()
        self.trim()

    def trim(self) -> None:
        """More history, of which the topic keeps only the last part."""
        self.write(8)
        self.past.trim()
        self.write(9)

    def elsewhere(self, number: int) -> Past:
        """The same servers with a Redis database of which nothing is known yet; `close` closes its store."""
        url = secret_url(self.past.redis).rpartition("/")[0]
        self._others.append(replace(self.past, redis=RedisSettings(url=f"{url}/{FIRST_DATABASE + number}")))
        return self._others[-1]

    def close(self) -> None:
        """Closes the stores of the other databases."""
        for other in self._others:
            other.store.close()

    def copied(self, past: Past, number: int) -> Past:
        """Everything of a Redis database in another one, which tests may spoil."""
        with Redis.from_url(secret_url(past.redis)) as client:
            for key in client.scan_iter(count=1000):
                client.copy(key, key, destination_db=FIRST_DATABASE + number, replace=True)
        return self.elsewhere(number)

    def querying(self, past: Past, checkpoints: Path) -> Streaming:
        """A stream of the query view, in a thread."""
        store = RedisViewStore(past.redis)
        return Streaming(self.spark, owner_sums, places(past.kafka, past.redis, store, checkpoints))

    def folding(
        self, past: Past, view: View[Any, Any], report: Report = lambda what, details: None, *, archive: bool = True
    ) -> ViewStream:
        """A stream of a folded view, to be stepped."""
        archived = {"open_log": past.log, "open_reader": past.reader} if archive else {}
        ports = ports_of(past.kafka, partial(RedisViewStore, past.redis), **archived)
        return ViewStream(self.spark, view, ports=ports, report=report)

    def follow(self, stream: ViewStream, past: Past) -> None:
        """Steps until the live generation is at the end of the log."""
        ends, reader = self.ends(), past.views[stream.view]
        step_until(
            lambda: stream.step(0.05),
            lambda: self.is_live(past, stream.view) and reader.describe().position.covers(ends),
            f"{stream.view.name} to be at {ends}",
        )

    def wait_committed(self, checkpoints: Path) -> None:
        """Waits until Spark has committed a batch, after which a stream can continue."""
        wait_until(lambda: any(checkpoints.glob("*/*/*/commits/[0-9]*")), f"a commit in {checkpoints}")

    def write(self, seed: int) -> None:
        with self.past.working(self.past.reader), closing(KafkaClient(app.name, self.past.kafka)) as client:
            self.past.send(client, seed)

    def is_live(self, past: Past, view: View[Any, Any]) -> bool:
        return past.store.registry(view.name).live_of(view.hash) is not None

    def ends(self) -> Position:
        with closing(self.past.topic()) as log:
            return log.stable_ends([TOPIC])

    def agreement(self, past: Past, *, swap_anyway: bool = True) -> Agreement:
        """Whether the query view's rows are those of archive and topic at the very same position."""
        refresh = past.work(Refresh, owner_sums, query_runner(self.spark), swap_anyway=swap_anyway)
        return agreement_of(refresh)
