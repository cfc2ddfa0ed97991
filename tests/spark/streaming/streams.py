"""Streaming folds as tests hold them: on the shop's log, into a Redis of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from leftfold.client import Views
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark.streaming.projection import ViewStream
from tests.domains.ledger import by_owner, by_tag, histories, stranger, summary
from tests.reports import Reports
from tests.spark.conftest import Shop
from tests.spark.oracle import truth
from tests.spark.queries.streams import ports_of
from tests.waiting import step_until
from tests.whole import assert_whole

__all__ = ["VIEWS", "Streams"]

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)


class Streams:
    """Streams of some views in this process, stepped by what waits for something."""

    def __init__(self, shop: Shop, redis: RedisSettings, *views: View[Any, Any], **options: Any) -> None:
        self.shop, self.redis = shop, redis
        self.store = RedisViewStore(redis)
        self.views = Views(self.store)
        self.reports = Reports()
        ports = ports_of(shop.kafka, partial(RedisViewStore, redis))
        self.streams = [
            ViewStream(shop.spark, view, ports=ports, report=self.reports, **options) for view in views or VIEWS
        ]

    def write(self, seed: int, count: int = 120) -> Position:
        """More random history; the position behind it."""
        return self.shop.send(histories(stranger(seed), count))

    def until(self, done: Callable[[], bool], awaited: str) -> None:
        """Steps until a condition holds; servers that are away are waited for."""

        def step() -> None:
            for stream in self.streams:
                try:
                    stream.step(0.05)
                except InfrastructureError as error:
                    self.reports("waiting", {"why": str(error)})

        step_until(step, done, lambda: f"{awaited}; {self.reports}")

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

    def said(self, what: str) -> int:
        return len(self.reports.of(what))

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.store.close()
