"""A stream as a process of its own that is killed at a write: `python -m tests.spark.stream_process ...`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.local import java_home, spark_jars
from leftfold.ports.flush import BucketFlush, Landed
from leftfold.ports.protocols import Flushing
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.streaming.projection import StreamPorts, ViewStream
from tests.domains.ledger import app
from tests.servers import patient

NTH = 4
"""At which of its passings a point kills."""


class DeadlyStore(RedisViewStore):
    """Kills the driver before or after a flush of a task's or of the driver's own; a task goes on as a zombie."""

    def __init__(self, settings: RedisSettings, at: str, folder: Path, driver: int) -> None:
        super().__init__(settings)
        self._at, self._folder, self._driver = at, folder, driver

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Flushes, and passes a point before and one behind."""
        who = "driver" if os.getpid() == self._driver else "task"
        self._reach(f"before {who}")
        landed = Landed(super().begin_flush(flushes).landed())
        self._reach(f"after {who}")
        return landed

    def _reach(self, point: str) -> None:
        if point != self._at:
            return
        number = next(number for number in range(1, 10_000) if self._passes(number))
        if number == NTH:
            (self._folder / "reached").write_text(point)
            os.kill(self._driver, signal.SIGKILL)

    def _passes(self, number: int) -> bool:
        """Whether this process is the one that passes for the nth time."""
        try:
            (self._folder / f"passed-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def main() -> None:
    """Streams until it is killed."""
    parser = argparse.ArgumentParser()
    for name in ("kafka", "redis", "view", "at", "folder"):
        parser.add_argument(name)
    told = parser.parse_args()
    kafka, redis = patient(told.kafka), RedisSettings(url=told.redis)
    with spark_session(SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars())) as spark:
        ports = StreamPorts(
            open_store=partial(DeadlyStore, redis, told.at, Path(told.folder), os.getpid()),
            open_log=partial(KafkaBulkLog, kafka),
            open_reader=partial(KafkaLogReader, kafka),
            kafka=kafka.java(),
        )
        stream = ViewStream(spark, app.view(told.view), ports=ports, most=200)
        while True:
            stream.step()


if __name__ == "__main__":
    main()
