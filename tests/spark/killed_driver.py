"""A rebuild on Spark as a process of its own, which is killed at a point: `python -m tests.spark.killed_driver ...`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.local import java_home
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, While
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.redis.bulk_load import seal
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.job import spark_runner
from tests.domains.ledger import app
from tests.servers import patient
from tests.spark.doomed import Doom
from tests.spark.killed_rebuild import FOLD

IN_A_TASK = {"within the bulk": ("within", 1), "behind the note of a whole bucket": ("behind", 2)}
"""Which write of a task is the driver's last moment; the second is the note that a bucket is whole."""


class DyingStore(RedisViewStore):
    """Ends this process at a point of a rebuild."""

    def __init__(self, settings: RedisSettings, point: str) -> None:
        super().__init__(settings)
        self._point = point

    def create_marks(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Makes the checkpoints that no registry lists yet."""
        made = super().create_marks(generation, checkpoints)
        self._pass("before it is registered")
        return made

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Seals all, or what a cluster of Redis servers seals first."""
        self._pass("before the seal")
        if self._point == "behind the first seal":
            seal(self._client, generation, {0: checkpoints[0]}, self._settings.history)
            self._pass(self._point)
        super().seal(generation, checkpoints)
        self._pass("behind the seal")

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Registers, swaps or forgets a generation."""
        swapped = before.live != after.live
        if swapped:
            self._pass("before the swap")
        done = super().change_registry(view, before, after, while_)
        if swapped:
            self._pass("behind the swap")
        if after.generations.keys() > before.generations.keys():
            self._pass("behind the begin")
        if after.generations.keys() < before.generations.keys():
            self._pass("before the old one's keys go")
        if any(g.phase is Phase.SEALED for g in after.generations.values()):
            self._pass("between seal and swap")
        return done

    def _pass(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def main(kafka: str, redis: str, view: str, point: str, folder: str) -> None:
    """Rebuilds a view."""
    settings, of_redis = patient(kafka), RedisSettings(url=redis)
    doom = Doom(Path(folder), victim=os.getpid())
    if point in IN_A_TASK:
        doom.arm(*IN_A_TASK[point])
    with spark_session(SparkSettings(master="local[2]", java_home=java_home())) as spark:
        Rebuild(
            app.view(view),
            DyingStore(of_redis, point),
            open_log=partial(KafkaBulkLog, settings),
            open_reader=partial(KafkaLogReader, settings),
            open_sink=partial(RedisBulkSink, of_redis, doom),
            run=spark_runner(spark),
            options=RebuildOptions(keep=0, fold=FOLD),
        ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
