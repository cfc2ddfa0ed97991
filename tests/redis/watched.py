"""Readers, projectors and writers at work in threads of their own, while a test changes what they work on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal

from leftfold.client import Views
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.redis import RedisViewStore
from tests.domains.ledger import summary
from tests.redis.cluster_set import ClusterSet

__all__ = ["KEY", "Watch", "busy", "watched", "working"]

KEY = "l-watched"


class Watch:
    """Reads one row all the while; its `moves` only grow in the log, so they may never shrink here."""

    def __init__(self, cluster: ClusterSet) -> None:
        self._cluster, self._end = cluster, threading.Event()
        self.seen: list[int] = []
        self.unreachable = 0

    def run(self) -> None:
        """Reads until the end."""
        store = RedisViewStore(self._cluster.settings)
        try:
            reader = Views(store)[summary]
            while not self._end.is_set():
                try:
                    row = reader.get(KEY)
                except InfrastructureError:
                    self.unreachable += 1
                    continue
                assert row is not None, "the row was missing"
                assert (row.balance, row.owner) == (Decimal(row.moves), "o"), f"a mixed row: {row}"
                assert not self.seen or row.moves >= self.seen[-1], f"an older row: {row.moves} after {self.seen[-1]}"
                self.seen.append(row.moves)
        finally:
            store.close()

    def end(self) -> None:
        """Lets it end."""
        self._end.set()


@contextmanager
def watched(cluster: ClusterSet, readers: int = 2) -> Iterator[Watch]:
    """Readers at work; what one of them finds wrong is raised at the end."""
    watch = Watch(cluster)
    watches = [watch, *(Watch(cluster) for _ in range(readers - 1))]
    with ThreadPoolExecutor(readers) as pool:
        outcomes = [pool.submit(one.run) for one in watches]
        try:
            yield watch
        finally:
            for one in watches:
                one.end()
        for outcome in outcomes:
            outcome.result()


@contextmanager
def working(tail: Projector) -> Iterator[None]:
    """A projector at work in a thread of its own."""
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            try:
                tail.step(0.002)
            except InfrastructureError:
                continue

    with ThreadPoolExecutor(1) as pool:
        work_ = pool.submit(work)
        try:
            yield
        finally:
            end.set()
        work_.result()


@contextmanager
def busy(work: Callable[[int], None]) -> Iterator[None]:
    """Does something on and on in a thread of its own, a little at a time."""
    end = threading.Event()

    def go_on() -> None:
        number = 0
        while not end.wait(0.01):
            number += 1
            work(number)

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(go_on)
        try:
            yield
        finally:
            end.set()
        going.result()
