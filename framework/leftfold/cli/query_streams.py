"""Query views that a stream keeps, each in a thread of the queries' process, begun again whenever it is fenced."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from leftfold.cli.embedded import local_settings
from leftfold.cli.trouble import Trouble
from leftfold.connection import kafka_settings, redis_settings, ring
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError, LeftfoldError, LogHole
from leftfold.logs import Report
from leftfold.ports import ViewStore
from leftfold.query import QueryView
from leftfold.wholelog import open_bulk

__all__ = ["ViewStream", "checkpoints"]

_PATIENCE = 10.0
"""For how many seconds nobody may have written before a run that was fenced takes over again."""
_LOOK_SECONDS = 5.0
"""How often a stream looks whether its view was rebuilt from the topics that are there."""


class ViewStream(threading.Thread):
    """Keeps one view until `stop` is set.

    `error` is a definition that is wrong, which ends the process. `hole` is what an archive has and a stream cannot
    read: the thread ends, and the view must be kept by somebody who reads the archive.
    """

    def __init__(
        self,
        session: Any,
        view: QueryView[Any, Any],
        *,
        shuffles: int,
        keep: float,
        archive: str,
        stop: threading.Event,
        report: Report,
    ) -> None:
        super().__init__(name=view.name, daemon=True)
        self._session, self.view, self._shuffles, self._keep = session, view, shuffles, keep
        self._archive, self._stop_, self._report = archive, stop, report
        self._trouble, self._foreign = Trouble(report, stop), ""
        self.error: ConfigurationError | None = None
        self.hole: LogHole | None = None

    def run(self) -> None:
        """Runs the stream again and again."""
        while not self._stop_.is_set() and self.error is None:
            try:
                self._stream()
            except Fenced as error:
                self._report("out of step", {"view": self.view.name, "why": str(error)})
                self._stand_by()
            except ConfigurationError as error:
                self.error = error
            except LogHole as error:
                if self._archive:
                    self.hole = error
                    return
                self._trouble.met(error)
            except InfrastructureError as error:
                if not self._stop_.is_set():
                    self._trouble.met(error)
            except LeftfoldError as error:
                self._report("view stopped", {"view": self.view.name, "why": str(error)})
                return

    def _stream(self) -> None:
        kafka, redis = kafka_settings(), redis_settings()
        adapters, batches = ring("leftfold.redis"), ring("leftfold.spark.stream_batches")
        store = adapters.RedisViewStore(redis)
        try:
            where = batches.StreamPlaces(
                store=store,
                open_log=open_bulk(kafka, self._archive),
                open_sink=partial(adapters.BulkSink, redis),
                kafka=kafka.java(),
                checkpoints=checkpoints(),
            )
            stream = ring("leftfold.spark.query_stream").QueryStream(
                self._session, self.view, where, shuffles=self._shuffles, keep=self._keep, report=self._told
            )
            if why := stream.foreign():
                if why != self._foreign:
                    self._report("view stopped", {"view": self.view.name, "why": why})
                self._foreign = why
                self._stop_.wait(_LOOK_SECONDS)
                return
            self._foreign = ""
            stream.run(self._stop_)
        finally:
            store.close()

    def _stand_by(self) -> None:
        """Waits until nobody writes the view, or nothing of it is left; unreachable servers are met by the next try."""
        store: ViewStore = ring("leftfold.redis").RedisViewStore(redis_settings())
        seen, since = dict[int, str](), time.monotonic()
        patience = _PATIENCE * random.uniform(0.75, 1.25)  # spreads two runs
        try:
            while time.monotonic() - since < patience and not self._stop_.wait(0.2):
                live = store.registry(self.view.name).live_of(self.view.hash)
                if live is None:
                    return
                tokens = {bucket: mark.token for bucket, mark in store.marks(live).items()}
                if tokens != seen:
                    seen, since = tokens, time.monotonic()
        except LeftfoldError:
            return
        finally:
            store.close()

    def _told(self, what: str, details: Any) -> None:
        self._trouble.told("")
        self._report(what, details)


def checkpoints() -> Path:
    """Where streams keep their sums: what LEFTFOLD_SPARK_CHECKPOINTS says, else beside the embedded servers' data."""
    settings = ring("leftfold.spark.settings").SparkSettings()
    return Path(settings.checkpoints or local_settings().data / "checkpoints").absolute()
