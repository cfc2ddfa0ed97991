"""Streaming folds as tests hold them: on the shop's log, into a Redis of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from leftfold.client import Views
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.streaming.microbatch_task import MicroBatchTask
from leftfold.errors import InfrastructureError
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark.streaming.projection import StreamPorts, ViewStream
from leftfold.spark.streaming.query import BatchQuery, QueryOptions
from tests.domains.ledger import by_owner, by_tag, histories, stranger, summary
from tests.redis.server import RedisServer
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.oracle import truth
from tests.whole import assert_whole

__all__ = ["VIEWS", "Streams", "begin_run", "dump"]

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


def ports_of(shop: Shop, redis: RedisSettings) -> StreamPorts:
    """What streams are given."""
    return StreamPorts(
        open_store=partial(RedisViewStore, redis),
        open_log=partial(KafkaBulkLog, shop.kafka),
        open_reader=partial(KafkaLogReader, shop.kafka),
        kafka=shop.kafka.java(),
    )


class Streams:
    """Streams of some views in this process, stepped by what waits for something."""

    def __init__(self, shop: Shop, redis: RedisSettings, *views: View[Any, Any], **options: Any) -> None:
        self.shop, self.redis = shop, redis
        self.store = RedisViewStore(redis)
        self.views = Views(self.store)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.streams = [
            ViewStream(shop.spark, view, ports=ports_of(shop, redis), report=self._tell, **options)
            for view in views or VIEWS
        ]

    def write(self, seed: int, count: int = 120) -> Position:
        """More random history; the position behind it."""
        return self.shop.send(histories(stranger(seed), count))

    def until(self, done: Callable[[], bool], awaited: str, seconds: float = WAIT_SECONDS) -> None:
        """Steps until a condition holds; servers that are away are waited for."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"waited {seconds:g} s for {awaited}; {self.told}"
            for stream in self.streams:
                try:
                    stream.step(0.05)
                except InfrastructureError as error:
                    self.told.append(("waiting", {"why": str(error)}))

    def settle(self, position: Position) -> None:
        """Steps until every view covers a position."""
        self.until(lambda: all(self.covers(s.view, position) for s in self.streams), f"views to be at {position}")

    def covers(self, view: View[Any, Any], position: Position) -> bool:
        """Whether the live generation has folded everything below."""
        try:
            registry = self.store.registry(view.name)
            live = registry.live_of(view.hash)
            checkpoints = self.store.checkpoints(live) if live is not None else {}
        except InfrastructureError:
            return False
        if live is None or len(checkpoints) < live.buckets:
            return False
        wanted = position.only(live.topics)
        return all(
            m.position.covers(wanted.only(live.topics, b if live.stream_keyed else None))
            for b, m in checkpoints.items()
        )

    def assert_equal_to_the_log(self) -> None:
        """Each view is in every part what the fold in memory makes of the log."""
        for stream in self.streams:
            assert_whole(self.store, stream.view, truth(self.shop, stream.view, self.store))

    def is_wrong(self, view: View[Any, Any]) -> bool:
        """Whether rows are not those of the log."""
        parked = self.views[view].describe().parked
        rows = {key: row for key, row in self.views[view].items() if key not in parked}
        return rows != truth(self.shop, view, self.store)

    def said(self, what: str) -> int:
        """How often something was reported."""
        return sum(1 for told, _ in self.told if told == what)

    def close(self) -> None:
        """Ends everything."""
        for stream in self.streams:
            stream.close()
        self.store.close()

    def _tell(self, what: str, details: Any) -> None:
        self.told.append((what, dict(details)))


def begin_run(streams: Streams, view: View[Any, Any], run: str, **options: Any) -> BatchQuery:
    """One run of a view's live generation, without a stream that would begin another one.

    Args:
        options: `job` and `told` are those of the course and of the query, the rest are options of the query.
    """
    ports = ports_of(streams.shop, streams.redis)
    live = streams.store.registry(view.name).live_of(view.hash)
    assert live is not None
    course = MicroBatchDriver(
        view, live, streams.store.checkpoints(live), run,
        open_store=ports.open_store, open_log=ports.open_log, job=options.pop("job", MicroBatchTask),
    )  # fmt: skip
    told: Callable[[MicroBatchDriver], None] = options.pop("told", lambda course: None)
    return BatchQuery(streams.shop.spark, [course], streams.store, QueryOptions(ports.kafka, **options), told)


def dump(server: RedisServer) -> dict[bytes, Any]:
    """Everything in a Redis."""
    with server.client() as client:
        found: dict[bytes, Any] = {}
        for key in client.scan_iter(count=1000):
            match client.type(key):
                case b"hash":
                    found[key] = client.hgetall(key)
                case b"stream":
                    found[key] = client.xrange(key)
                case _:
                    found[key] = client.zrange(key, 0, -1)
        return found
