"""Holds a driver on a cluster: says what it is to do, waits for it, and compares the view that it keeps up to date."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from leftfold.client import Views
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import events, partition_of
from leftfold.model.position import Position
from leftfold.redis import RedisSettings, RedisViewStore
from tests.domains.ledger import Move, app, histories, stranger
from tests.redis.server import RedisServer
from tests.servers import secret_url
from tests.spark.cluster.doomed import Doom
from tests.spark.cluster.standalone import ROOT
from tests.spark.conftest import Shop
from tests.spark.oracle import truth
from tests.waiting import WAIT_SECONDS, wait_until
from tests.whole import assert_whole

__all__ = ["NEIGHBOURS", "Driver", "KeptView"]


class Driver:
    """The process behind `tests.spark.cluster.cluster_driver`; `doom` is what its tasks meet."""

    def __init__(self, master: str, kafka: KafkaSettings, folder: Path) -> None:
        self.doom, self._log = Doom(folder), folder / "log"
        command = [
            sys.executable,
            "-m",
            "tests.spark.cluster.cluster_driver",
            master,
            kafka.bootstrap_servers,
            str(folder),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, text=True
            )
        self._answers: SimpleQueue[str] = SimpleQueue()
        self._keeping: dict[str, Any] = {}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._listener.join()

    def begin(self, do: str, redis: RedisSettings, **reported: Any) -> None:
        """Gives an order, which ends what is under way."""
        assert self._process.stdin is not None
        self._keeping = {"do": do, "redis": secret_url(redis), **reported}
        self._process.stdin.write(json.dumps(self._keeping) + "\n")
        self._process.stdin.flush()

    def keep(self, do: str, redis: RedisSettings, **reported: Any) -> None:
        """Begins something that keeps going, unless that is what is under way."""
        if self._keeping != {"do": do, "redis": secret_url(redis), **reported}:
            self.begin(do, redis, **reported)
            assert self.answer() == {}

    def answer(self) -> Mapping[str, Any]:
        """Waits for the answer to an order."""
        self.wait_until(lambda: not self._answers.empty(), "an answer")
        reported: dict[str, Any] = json.loads(self._answers.get())
        return reported

    def wait_until(self, condition: Any, awaited: str) -> None:
        """Waits for a condition, as long as the driver lives."""
        wait_until(
            lambda: condition() or self._process.poll() is not None,
            lambda: f"{awaited}: {self._log.read_text()}",
            WAIT_SECONDS,
        )
        assert condition(), f"the driver ended before {awaited}: {self._log.read_text()}"

    def reported(self, what: str) -> str:
        """Waits for what a task reports."""
        path = self.doom.folder / what
        self.wait_until(path.exists, what)
        return path.read_text()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as reported:
            for line in reported:
                self._answers.put(line)


TOPIC = events("ledgers")
NEIGHBOURS = [key for key in (f"late-{n}" for n in range(30)) if partition_of(key.encode(), app.partitions) == 0][:2]
"""Two ledgers whose rows are in one bucket of their summary."""
MOST = 20
"""Writings until one must have been whole in a batch."""


class KeptView:
    """What is under way in the driver until it gets another order.

    Args:
        database: of the streams' own Redis. do, reported: the order to the driver.
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
        **reported: Any,
    ) -> None:
        settings = RedisSettings(url=f"redis://127.0.0.1:{redis.port}/{database}")
        self.driver, self.shop, self.view, self.store = driver, shop, view, RedisViewStore(settings)
        self.reader = Views(self.store)[view]
        driver.keep(do, settings, view=view.name, **reported)

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
        """Moves that leave a trace when they are folded twice, of ledgers that are never closed."""
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
        """Everything is what the fold in memory makes of the log, or `rows`, and stands at its end."""
        ends = self.settle()
        assert_whole(self.store, self.view, self.truth() if rows is None else rows, ends)

    def close(self) -> None:
        """Closes connections; the driver continues."""
        self.store.close()

    def _stands_at(self, ends: Position) -> bool:
        live = self.store.registry(self.view.name).live_of(self.view.hash)
        if live is None:
            return False
        wanted = {b: ends.only(live.topics, b if live.stream_keyed else None) for b in range(live.buckets)}
        return {b: checkpoint.position for b, checkpoint in self.store.checkpoints(live).items()} == wanted
