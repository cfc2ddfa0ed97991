"""A stream of a query view at work in a thread, and what to hold it against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.views.generations import change
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.computed_views import QueryView
from leftfold.model.position import Position
from leftfold.ports.bulk import BulkStore
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import ViewStore
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.spark.queries.incremental_batches import CheckpointDirectory, StreamPlaces
from leftfold.spark.queries.query_stream import QueryStream
from leftfold.spark.streaming.projection import StreamPorts
from tests.reports import Reports
from tests.spark.conftest import Shop
from tests.spark.queries.views import owner_sums
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = [
    "Streaming",
    "Trusting",
    "agreement",
    "agreement_of",
    "caught_up",
    "made_elsewhere",
    "newest",
    "places",
    "ports_of",
    "streaming",
    "wait_committed",
]


def places(kafka: KafkaSettings, redis: RedisSettings, store: BulkStore, checkpoints: Path) -> StreamPlaces:
    return StreamPlaces(store, partial(KafkaBulkLog, kafka), partial(RedisBulkSink, redis), kafka.java(), checkpoints)


def ports_of(kafka: KafkaSettings, open_store: Callable[[], ViewStore], **others: Any) -> StreamPorts:
    """What a stream of a folded view is given."""
    readers = {"open_log": partial(KafkaBulkLog, kafka), "open_reader": partial(KafkaLogReader, kafka)}
    return StreamPorts(open_store=open_store, kafka=kafka.java(), **{**readers, **others})


def made_elsewhere(shop: Shop, view: Any, *, id_: str = "elsewhere") -> Generation:
    """The live generation, as if it had been computed from topics of these names in another cluster.

    Args:
        id_: of the topics there; '' as in a generation that an older version of Leftfold has made.
    """
    live = shop.store.registry(view.name).live_of(view.hash)
    assert live is not None
    other = replace(live, ids=dict.fromkeys(live.topics, id_) if id_ else {})
    change(shop.store, view.name, lambda registry: registry.with_generation(other))
    return other


def newest(shop: Shop, checkpoints: Path, folder: str) -> list[Path]:
    """What Spark has noted of the batches of a stream of owner_sums, the newest first."""
    generation = shop.views[owner_sums].describe().generation
    (home,) = (path for path in (checkpoints / owner_sums.name / generation).glob("*") if path.is_dir())
    files = [path for path in (home / folder).glob("*") if path.name.isdecimal()]
    return sorted(files, key=lambda path: -int(path.name))


def wait_committed(shop: Shop, checkpoints: Path) -> None:
    """Waits until Spark has noted every batch as done, which it does some time behind the batch's own writes."""

    def is_committed() -> bool:
        found = [newest(shop, checkpoints, folder) for folder in ("offsets", "commits")]
        if not all(found):
            return False  # no batch is planned yet
        planned, done = (files[0].name for files in found)
        return planned == done

    wait_until(is_committed, "the newest batch to be committed")


class Streaming(Background):
    """A stream in a thread of this process, until the block ends or something ends it before that."""

    kind = QueryStream

    def __init__(self, spark: SparkSession, view: QueryView[Any, Any], where: StreamPlaces, **options: Any) -> None:
        self.reports, self._where = Reports(), where
        stream = self.kind(spark, view, where, every=0.05, keep=0, report=self.reports, **options)
        super().__init__(stream.run)

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        try:
            super().__exit__(kind, *more)
        finally:
            self._where.store.close()

    def heard(self, what: str) -> bool:
        return bool(self.reports.of(what))

    def wait_heard(self, what: str) -> None:
        wait_until(
            lambda: self.heard(what), lambda: f"{what!r}: {self.reports} {self.failures}", running=lambda: self.is_alive
        )

    def wait_ended(self) -> BaseException:
        """Waits until something has ended it, which it returns."""
        wait_until(lambda: not self.is_alive, "the end of the stream")
        return self.failures.pop()


class TrustingCheckpoint(CheckpointDirectory):
    """Continues from wherever Spark's checkpoint is, whatever the marks say."""

    def resumable(self, run: str, batch: int | None, files: Any) -> Path | None:
        return self._of(run)


class TrustingStream(QueryStream):
    def checkpoint(self, generation: Generation) -> CheckpointDirectory:
        return TrustingCheckpoint(self._places.checkpoints, self._view.name, generation.id)


class Trusting(Streaming):
    """A stream that believes its checkpoint, to show what the marks are good for."""

    kind = TrustingStream


def streaming(
    shop: Shop, checkpoints: Path, view: QueryView[Any, Any] = owner_sums, kind: type[Streaming] = Streaming
) -> Streaming:
    """A stream of a view on the shop's servers, with a store of its own, as in another process."""
    return kind(shop.spark, view, places(shop.kafka, shop.redis, RedisViewStore(shop.redis), checkpoints))


def agreement(shop: Shop, view: QueryView[Any, Any] = owner_sums) -> Agreement:
    """Whether the stream's rows are those of the batch at the very same position."""
    return agreement_of(shop.refresh(view, swap_anyway=True))


def agreement_of(refresh: Refresh) -> Agreement:
    """Whether rows are those that a refresh computes, once they stand where it does."""
    plan = refresh.plan()
    wait_until(lambda: refresh.stands_at(plan), lambda: f"the rows to be at {plan.ends}")
    return refresh.run(plan).agreement


def caught_up(shop: Shop, position: Position, view: QueryView[Any, Any] = owner_sums) -> None:
    """Waits until readers see everything up to a position."""
    shop.views[view].wait_reached(position, timeout=WAIT_SECONDS)
