"""A stream as a process of its own that is killed at a write: `python -m tests.spark.dying ...`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from leftfold.local import java_home, spark_jars
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Landed
from leftfold.ports.protocols import Flushing
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.queries.query_stream import QueryStream
from leftfold.spark.streaming.projection import ViewStream
from tests.domains.ledger import app
from tests.servers import patient, secret_url
from tests.spark.conftest import Shop
from tests.spark.queries.streams import places, ports_of
from tests.spark.queries.views import owner_sums

__all__ = ["dying"]

ROOT = Path(__file__).parents[2]


class DyingStore(RedisViewStore):
    """Kills the driver before or after a write of a task's or of the driver's own; a task lives on as a zombie.

    Args:
        at: such as `before seal 1`, `after flush 2` or `before task 4`, which is a flush of any task.
    """

    def __init__(self, settings: RedisSettings, at: str, folder: Path, driver: int) -> None:
        super().__init__(settings)
        self._point, _, nth = at.rpartition(" ")
        self._nth, self._folder, self._driver = int(nth), folder, driver

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        self._around("seal", lambda: super(DyingStore, self).seal(generation, checkpoints))

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        return bool(self._around("flush", lambda: super(DyingStore, self).flush(flushes)))

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        landed: Flushing = self._around(
            "driver" if os.getpid() == self._driver else "task",
            lambda: Landed(super(DyingStore, self).begin_flush(flushes).landed()),
        )
        return landed

    def _around(self, what: str, write: Callable[[], Any]) -> Any:
        self._reach(f"before {what}")
        done = write()
        self._reach(f"after {what}")
        return done

    def _reach(self, point: str) -> None:
        if point == self._point and next(n for n in range(1, 10_000) if self._passes(n)) == self._nth:
            (self._folder / "reached").touch()
            os.kill(self._driver, signal.SIGKILL)

    def _passes(self, number: int) -> bool:
        """Whether this process is the one that passes for the nth time."""
        try:
            (self._folder / f"passed-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


@contextmanager
def dying(
    shop: Shop, redis: RedisSettings, view: str, at: str, folder: Path, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process and its log, which is no pipe: Spark's own processes may outlive it."""
    words = [str(shop.kafka.bootstrap_servers), secret_url(redis), view, at, str(folder)]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.dying", *words], cwd=ROOT, stdout=out, stderr=out,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield process, log
        assert process.returncode == -signal.SIGKILL, log.read_text()
        assert (folder / "reached").exists(), log.read_text()
    finally:
        process.kill()
        process.wait()


def main(servers: str, url: str, view: str, at: str, place: str) -> None:
    """Streams until it is killed."""
    kafka, redis, folder = patient(servers), RedisSettings(url=url), Path(place)
    open_store = partial(DyingStore, redis, at, folder, os.getpid())
    with spark_session(SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars())) as spark:
        if view == owner_sums.name:
            where = places(kafka, redis, open_store(), folder / "checkpoints")
            QueryStream(spark, owner_sums, where, every=0.05, keep=0).run(threading.Event())
        stream = ViewStream(spark, app.view(view), ports=ports_of(kafka, open_store), most=200)
        while True:
            stream.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
