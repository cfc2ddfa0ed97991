"""A driver on a cluster that obeys orders: `python -m tests.spark.cluster.cluster_driver MASTER KAFKA FOLDER`.

Each line that it reads is an order, each that it writes the answer. Its tasks meet what `Doom` has for them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pyspark.sql import SparkSession

from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.streaming.microbatch_task import MicroBatchTask
from leftfold.errors import LeftfoldError
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import java_home, spark_jars
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.job import spark_runner
from leftfold.spark.queries.query_stream import QueryStream
from leftfold.spark.streaming.projection import ViewStream
from tests.domains.ledger import app
from tests.engine.streaming.test_careless_batches import Forgetful
from tests.servers import patient
from tests.spark.cluster.doomed import Doom
from tests.spark.cluster.standalone import ROOT
from tests.spark.queries.streams import places, ports_of
from tests.spark.queries.views import owner_sums

IDLE_SECONDS = 0.05
PROPERTIES = {
    # Executors are started again all the time: with quick Java, and with code that is compiled already.
    "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)]),
    # One death is one failure, which must be enough.
    "spark.task.maxFailures": "2",
}


class Work:
    """One stream at a time, or a rebuild."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, folder: Path) -> None:
        self._spark, self._kafka, self._folder = spark, kafka, folder
        self._step: Callable[[], object] | None = None
        self._end: Callable[[], object] = lambda: None

    def do(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Ends what went on before and does what the order says; `step` continues what keeps going."""
        self.end()
        settings = RedisSettings(url=order["redis"])
        doom = Doom(self._folder, watched=order.get("watched", True), spared=os.getpid())
        work = {"stream": self._stream, "rebuild": self._rebuild, "query": self._query}[order["do"]]
        try:
            return work(order, settings, doom)
        except LeftfoldError as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def step(self) -> bool:
        """Continues; whether there is anything to continue."""
        if self._step is not None:
            self._step()
        return self._step is not None

    def end(self) -> None:
        end, self._end, self._step = self._end, lambda: None, None
        end()

    def _stream(self, order: Mapping[str, Any], redis: RedisSettings, doom: Doom) -> dict[str, Any]:
        ports = ports_of(self._kafka, partial(RedisViewStore, redis, doom))
        job = Forgetful if order.get("forgetful") else MicroBatchTask
        stream = ViewStream(self._spark, app.view(order["view"]), ports=ports, job=job)
        self._step, self._end = partial(stream.step, IDLE_SECONDS), stream.close
        return {}

    def _rebuild(self, order: Mapping[str, Any], redis: RedisSettings, doom: Doom) -> dict[str, Any]:
        store = RedisViewStore(redis)
        try:
            result = Rebuild(
                app.view(order["view"]),
                store,
                open_log=partial(KafkaBulkLog, self._kafka),
                open_reader=partial(KafkaLogReader, self._kafka),
                open_sink=partial(RedisBulkSink, redis, doom),
                run=spark_runner(self._spark),
                options=RebuildOptions(keep=0),
            ).run()
        finally:
            store.close()
        return {"agreement": result.agreement.value}

    def _query(self, order: Mapping[str, Any], redis: RedisSettings, doom: Doom) -> dict[str, Any]:
        store, stop = RedisViewStore(redis), threading.Event()
        where = places(self._kafka, redis, store, self._folder / "checkpoints")
        where = replace(where, open_sink=partial(RedisBulkSink, redis, doom))
        stream = QueryStream(self._spark, owner_sums, where, every=IDLE_SECONDS, keep=0)
        thread = threading.Thread(target=stream.run, args=(stop,))
        thread.start()

        def end() -> None:
            stop.set()
            thread.join()
            store.close()

        self._step, self._end = partial(_wait_on, thread), end
        return {}


def _wait_on(thread: threading.Thread) -> None:
    thread.join(IDLE_SECONDS)
    if not thread.is_alive():
        raise RuntimeError("the stream ended; see above")


def main(master: str, kafka: str, folder: str) -> None:
    """Works until its input ends."""
    orders: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            orders.put(line)
        orders.put("")

    threading.Thread(target=listen, daemon=True).start()
    settings = SparkSettings(
        master=master,
        java_home=java_home(),
        jars=spark_jars(),
        host="127.0.0.1",
        executor_memory="512m",
        properties=PROPERTIES,
    )
    with spark_session(settings) as spark:
        work = Work(spark, patient(kafka), Path(folder))
        while True:
            try:
                line = orders.get(timeout=0.0 if work.step() else IDLE_SECONDS)
            except Empty:
                continue
            if not line:
                work.end()
                return
            print(json.dumps(work.do(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
