"""A view that a driver on a cluster keeps up to date in a Redis database of its own, and what it must be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any

from leftfold.client import Views
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.model.keys import events, partition_of
from leftfold.model.position import Position
from leftfold.redis import RedisSettings, RedisViewStore
from tests.domains.ledger import Move, app, histories, stranger
from tests.redis.server import RedisServer
from tests.spark.cluster.driver import Driver
from tests.spark.conftest import Shop
from tests.spark.oracle import truth
from tests.whole import assert_whole

__all__ = ["NEIGHBOURS", "KeptView"]

TOPIC = events("ledgers")
NEIGHBOURS = [key for key in (f"late-{n}" for n in range(30)) if partition_of(key.encode(), app.partitions) == 0][:2]
"""Two ledgers whose rows are in one bucket of their summary."""
MOST = 20
"""Writings until one must have been whole in a batch."""


class KeptView:
    """What goes on in the driver until it is told something else.

    Args:
        database: of the streams' own Redis. do, told: the order to the driver.
    """

    def __init__(
        self,
        driver: Driver,
        shop: Shop,
        redis: RedisServer,
        view: Any,
        *,
        database: int,
        do: str = "stream",
        **told: Any,
    ) -> None:
        settings = RedisSettings(url=f"redis://127.0.0.1:{redis.port}/{database}")
        self.driver, self.shop, self.view, self.store = driver, shop, view, RedisViewStore(settings)
        self.reader = Views(self.store)[view]
        driver.keep(do, settings, view=view.name, **told)

    def settle(self, position: Position = Position()) -> Position:
        """Waits until every checkpoint is where the log ends, behind a position; where that is."""
        ends = position
        with closing(KafkaBulkLog(self.shop.kafka)) as log:

            def is_there() -> bool:
                nonlocal ends
                ends = log.stable_ends([TOPIC])
                return ends.covers(position) and self._stands_at(ends)

            self.driver.wait_until(is_there, f"{self.view.name} to be at the end of the log")
        return ends

    def write(self, seed: int) -> Position:
        """More random history."""
        return self.shop.send(histories(stranger(seed), 120))

    def gain(self, number: int) -> Position:
        """Moves that leave a trace when they are folded twice, of ledgers that nobody closes."""
        moves = (Move(ledger=f"gain-{number}-{n % 30}", owner="late", amount=Decimal("1.00")) for n in range(120))
        return self.shop.send(moves)

    def move(self, ledger: str, *amounts: str) -> Position:
        """A few moves of one ledger."""
        return self.shop.send([Move(ledger=ledger, owner="late", amount=Decimal(amount)) for amount in amounts])

    def write_fatally(self, at: tuple[str, int], write: Callable[[int], Position]) -> None:
        """Has something written, while which is folded an executor is killed; again as long as no task wrote so often.

        A batch that begins while it is written has only a part of it, which may be one write.
        """
        self.settle()
        (met,) = self.driver.doom.arm(*at)
        for more in itertools.count():
            self.settle(write(more))
            if met.exists():
                return
            assert more < MOST, f"no task came to {met.name}"

    def rows(self) -> dict[Any, Any]:
        """The rows that are not parked."""
        parked = self.reader.describe().parked
        return {key: row for key, row in self.reader.items() if key not in parked}

    def truth(self) -> dict[Any, Any]:
        """What they must be."""
        return truth(self.shop, self.view, self.store)

    def assert_whole(self, rows: Mapping[Any, Any] | None = None) -> None:
        """Everything is what the fold in memory makes of the log, or as told, and stands at its end."""
        ends = self.settle()
        assert_whole(self.store, self.view, self.truth() if rows is None else rows, ends)

    def close(self) -> None:
        """Lets go of connections; the driver goes on."""
        self.store.close()

    def _stands_at(self, ends: Position) -> bool:
        live = self.store.registry(self.view.name).live_of(self.view.hash)
        if live is None:
            return False
        wanted = {b: ends.only(live.topics, b if live.stream_keyed else None) for b in range(live.buckets)}
        return {b: checkpoint.position for b, checkpoint in self.store.checkpoints(live).items()} == wanted
