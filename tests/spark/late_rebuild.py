"""A rebuild on a cluster, one of whose tasks is late, as a process of its own: `python -m tests.spark.late_rebuild`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.local import java_home
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.job import spark_runner
from tests.domains.ledger import app
from tests.servers import patient
from tests.spark.late import LateSink, UncheckedLateSink

ROOT = Path(__file__).parents[2]
CODE = (ROOT / "framework" / "leftfold", ROOT / "tests")


def main() -> None:
    """Rebuilds a view and prints what came of it."""
    parser = argparse.ArgumentParser()
    for name in ("master", "kafka", "redis", "folder", "view"):
        parser.add_argument(name)
    parser.add_argument("--unchecked", action="store_true")
    told = parser.parse_args()
    kafka, redis = patient(told.kafka), RedisSettings(url=told.redis)
    sink = UncheckedLateSink if told.unchecked else LateSink
    settings = SparkSettings(
        master=told.master, java_home=java_home(), host="127.0.0.1", executor_memory="512m", py_files=CODE
    )
    store = RedisViewStore(redis)
    with spark_session(settings) as spark:
        result = Rebuild(
            app.view(told.view),
            store,
            open_log=partial(KafkaBulkLog, kafka),
            open_reader=partial(KafkaLogReader, kafka),
            open_sink=partial(sink, redis, Path(told.folder)),
            run=spark_runner(spark),
            options=RebuildOptions(keep=0),
        ).run()
    store.close()
    print(result.agreement.value)


if __name__ == "__main__":
    main()
