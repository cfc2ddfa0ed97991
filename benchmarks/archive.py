"""The archive: how fast it is written and verified, and rebuilds from it against rebuilds from Kafka in one run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing

from benchmarks.figure import Figure
from benchmarks.rebuilding import timed_rebuild
from benchmarks.small_events import balances, write_movements
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers, java_home
from leftfold.model.keys import events
from leftfold.parquet.archive_check import verify_archive
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.redis import RedisSettings
from leftfold.spark import SparkSettings, spark_session

__all__ = ["run"]

EVENTS = 2_000_000
TOPIC = events("movements")


def run(servers: Servers) -> list[Figure]:
    """Events per second; the rebuilds take turns, so that neither has the warmer machine."""
    kafka, redis = KafkaSettings(bootstrap_servers=servers.kafka), RedisSettings(url=servers.redis)
    tuned_gc()
    write_movements(kafka, EVENTS)
    with tempfile.TemporaryDirectory(prefix="leftfold-archive-") as folder:
        place = ArchiveFileSystem(folder)
        written = EVENTS / _timed(lambda: _archive(kafka, place))
        verified = EVENTS / _timed(lambda: verify_archive(place, TOPIC))
        size = sum(place.size(name) or 0 for name in place.names(TOPIC))
        with spark_session(SparkSettings(master="local[2]", java_home=java_home(), memory="2g")) as spark:
            pairs = [
                (
                    timed_rebuild(spark, kafka, redis, balances, archive=folder)[0],
                    timed_rebuild(spark, kafka, redis, balances)[0],
                )
                for _ in range(3)
            ]
    ours, peer = EVENTS / min(pair[0] for pair in pairs), EVENTS / min(pair[1] for pair in pairs)
    note = f"{EVENTS:,} events of four fields; {size / EVENTS:.0f} bytes each in the archive"
    return [
        Figure("archive.rebuild", ours, "events/s", peer=peer, goal=1, note="peer: the same rebuild from Kafka"),
        Figure("archive.write", written, "events/s", note=note),
        Figure("archive.verify", verified, "events/s", note="sizes, sha256, every record"),
    ]


def _archive(kafka: KafkaSettings, place: ArchiveFileSystem) -> None:
    with ClusterAdmin(kafka) as cluster, closing(KafkaBulkLog(kafka)) as log:
        Archiver(place, TOPIC, cluster.identity(TOPIC), log).run()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
