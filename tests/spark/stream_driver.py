"""A stream of owner_sums as a process that kills itself, by SIGKILL, before or after one of its writes to Redis."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leftfold.local import java_home, spark_jars
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.queries.query_stream import QueryStream
from tests.servers import patient
from tests.spark.queries import owner_sums
from tests.spark.query_streams import places


class DeadlyStore(RedisViewStore):
    """Ends this process at a point such as `before flush 2`, `after seal 1` or `before live 1`."""

    def __init__(self, settings: RedisSettings, point: str) -> None:
        super().__init__(settings)
        self._point, self._counts = point, dict[str, int]()

    def seal(self, generation: Generation, marks: Mapping[int, Checkpoint]) -> None:
        self._meet("seal", lambda: super(DeadlyStore, self).seal(generation, marks))

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        return bool(self._meet("flush", lambda: super(DeadlyStore, self).flush(flushes)))

    def _meet(self, what: str, work: Any) -> Any:
        count = self._counts[what] = self._counts.get(what, 0) + 1
        self._die(f"before {what} {count}")
        done = work()
        self._die(f"after {what} {count}")
        return done

    def _die(self, here: str) -> None:
        if here == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def main(kafka: str, redis: str, checkpoints: str, point: str) -> None:
    """Streams until SIGTERM, or until the point."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = RedisSettings(url=redis)
    where = places(patient(kafka), settings, DeadlyStore(settings, point), Path(checkpoints))
    with spark_session(SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars())) as spark:
        stream = QueryStream(
            spark, owner_sums, where, every=0.05, keep=0, report=lambda what, told: print(what, flush=True)
        )
        stream.run(stop)


if __name__ == "__main__":
    main(*sys.argv[1:])
