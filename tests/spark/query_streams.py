"""A stream of a query view at work in a thread, and what to hold it against."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import SparkSession

from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.views.generations import change
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.computed_views import QueryView
from leftfold.ports.bulk import BulkStore
from leftfold.ports.flush import Generation
from leftfold.redis import RedisBulkSink, RedisSettings
from leftfold.spark.queries.incremental_batches import StreamPlaces
from leftfold.spark.queries.query_refresh import query_runner
from leftfold.spark.queries.query_stream import QueryStream
from tests.spark.conftest import Shop
from tests.spark.queries import owner_sums
from tests.waiting import wait_until

__all__ = ["Streaming", "made_elsewhere", "newest", "places", "refreshing", "wait_committed"]

WAIT_SECONDS = 240.0


def places(kafka: KafkaSettings, redis: RedisSettings, store: BulkStore, checkpoints: Path) -> StreamPlaces:
    return StreamPlaces(store, partial(KafkaBulkLog, kafka), partial(RedisBulkSink, redis), kafka.java(), checkpoints)


def refreshing(
    spark: SparkSession, kafka: KafkaSettings, redis: RedisSettings, store: BulkStore, view: Any, **options: Any
) -> Refresh:
    """A refresh as a whole: what every stream must come to."""
    return Refresh(
        view,
        store,
        open_log=partial(KafkaBulkLog, kafka),
        open_reader=partial(KafkaLogReader, kafka),
        open_sink=partial(RedisBulkSink, redis),
        run=query_runner(spark),
        options=RebuildOptions(**{"keep": 0, **options}),
    )


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
        planned, done = (newest(shop, checkpoints, folder)[0].name for folder in ("offsets", "commits"))
        return planned == done

    wait_until(is_committed, "the newest batch to be committed")


class Streaming:
    """A stream in a thread of this process, until the block ends; `error` is what ended it before that."""

    kind = QueryStream

    def __init__(self, spark: SparkSession, view: QueryView[Any, Any], where: StreamPlaces, **options: Any) -> None:
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.error: BaseException | None = None
        self._stop, self._where = threading.Event(), where
        self._stream = self.kind(
            spark, view, where, every=0.05, keep=0, report=lambda what, told: self.told.append((what, told)), **options
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._where.store.close()

    def heard(self, what: str) -> bool:
        return what in [said for said, _ in self.told]

    def wait_heard(self, what: str) -> None:
        self._wait(lambda: self.heard(what), f"the stream never said {what!r}: {self.told}")

    def wait_ended(self) -> BaseException:
        self._wait(lambda: not self._thread.is_alive(), "the stream went on", ended=True)
        assert self.error is not None, "the stream ended without a word"
        return self.error

    def _wait(self, reached: Any, why: str, *, ended: bool = False) -> None:
        wait_until(reached, lambda: f"{why}; {self.error!r}", WAIT_SECONDS, lambda: ended or self._thread.is_alive())

    def _run(self) -> None:
        try:
            self._stream.run(self._stop)
        except BaseException as error:
            self.error = error
