"""The worker process of views that Spark computes: streamed where that is exact, else refreshed at intervals."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.engine.views.leases import members
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError, LeftfoldError, LogGap
from leftfold.model import keys as names
from leftfold.model.computed_views import QueryView, TableView, UnusableReference
from leftfold.model.view import View
from leftfold.ports.protocols import Report
from leftfold.redis import RedisBulkSink, RedisViewStore, refuse_eviction
from leftfold.runtime.connect import kafka_settings, open_bulk, redis_settings
from leftfold.runtime.lifecycle import Outage
from leftfold.runtime.project import local_settings
from leftfold.runtime.rebuilding import Rebuilding, cores_of, spark_settings

__all__ = ["cancelling", "refresh"]


_PATIENCE = 10.0
"""Seconds without a flush by another run after which a fenced stream takes the view over again."""
_LOOK_SECONDS = 5.0
"""Seconds between checks whether the view of a stopped stream was rebuilt from the existing topics."""


class QueryViewThread(threading.Thread):
    """A thread that runs the Spark stream of one view until `stop` is set.

    `error` is set when the view's definition is wrong or something unforeseen failed, such as a call of a JVM that has
    died: the thread ends, and the process must too. `gap` is set when the stream needs trimmed records, which only the
    archive has: the thread ends, and the view must be refreshed from the archive.
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
        self._trouble, self._foreign = Outage(report, stop), ""
        self.error: Exception | None = None
        self.gap: LogGap | None = None

    def run(self) -> None:
        """Runs the stream, and restarts it after outages and fencing."""
        while not self._stop_.is_set() and self.error is None:
            try:
                self._stream()
            except Fenced as error:
                self._report("out of step", {"view": self.view.name, "why": str(error)})
                self._stand_by()
            except LogGap as error:
                if self._archive:
                    self.gap = error
                    return
                self._trouble.pause_after(error)
            except (InfrastructureError, UnusableReference) as error:
                if not self._stop_.is_set():
                    self._trouble.pause_after(error)
            except ConfigurationError as error:
                self.error = error
            except LeftfoldError as error:
                self._report("view stopped", {"view": self.view.name, "why": str(error)})
                return
            except Exception as error:  # noqa: BLE001  # the main thread raises it
                self.error = error

    def _stream(self) -> None:
        from leftfold.spark.queries.incremental_batches import StreamPlaces
        from leftfold.spark.queries.query_stream import QueryStream

        kafka, redis = kafka_settings(), redis_settings()
        with closing(RedisViewStore(redis)) as store:
            where = StreamPlaces(
                store=store,
                open_log=open_bulk(kafka, self._archive),
                open_sink=partial(RedisBulkSink, redis),
                kafka=kafka.java(),
                checkpoints=checkpoints(),
            )
            stream = QueryStream(
                self._session, self.view, where, shuffles=self._shuffles, keep=self._keep, report=self._forward
            )
            if why := stream.foreign():
                if why != self._foreign:
                    self._report("view stopped", {"view": self.view.name, "why": why})
                self._foreign = why
                self._stop_.wait(_LOOK_SECONDS)
                return
            self._foreign = ""
            stream.run(self._stop_)

    def _stand_by(self) -> None:
        """Waits until no other run computes or flushes the view; the next try reports an outage."""
        seen, since = dict[int, str](), time.monotonic()
        patience = _PATIENCE * random.uniform(0.75, 1.25)  # spreads two runs
        with suppress(LeftfoldError), closing(RedisViewStore(redis_settings())) as store:
            while time.monotonic() - since < patience and not self._stop_.wait(0.2):
                if members(store, names.rebuilds(self.view.name)):
                    since = time.monotonic()
                    continue
                live = store.registry(self.view.name).live_of(self.view.hash)
                if live is None:
                    return
                tokens = {bucket: checkpoint.token for bucket, checkpoint in store.checkpoints(live).items()}
                if tokens != seen:
                    seen, since = tokens, time.monotonic()

    def _forward(self, what: str, details: Any) -> None:
        self._trouble.report_cause("")
        self._report(what, details)


def checkpoints() -> Path:
    """The directory of Spark's checkpoints: LEFTFOLD_SPARK_CHECKPOINTS, else in the embedded servers' data."""
    from leftfold.spark.core.session import SparkSettings

    settings = SparkSettings()
    return Path(settings.checkpoints or local_settings().data / "checkpoints").absolute()


_KEEP = 60.0
"""Seconds for which the replaced generation stays, for readers in the middle of a scan."""
_PAST = "the topic no longer holds what its stream must read, and a stream reads no archive"


def refresh(
    views: Sequence[View[Any, Any]], every: float, stop: threading.Event, report: Report, *, archive: str
) -> None:
    """Keeps views up to date until `stop` is set: by streams, or by refreshes at intervals.

    Args:
        every: seconds between refreshes of the views without a stream.

    Raises:
        ConfigurationError: the SQL of a view is not allowed or does not give its row, Redis evicts keys, or a reference
            file is unusable at the start; the error persists after a restart.
    """
    from leftfold.local import spark_jars
    from leftfold.spark.core.session import spark_session

    settings = spark_settings(None)
    settings = settings.model_copy(update={"jars": (*settings.jars, *spark_jars())})
    report("starting Spark", {"views": ", ".join(view.name for view in views)})
    with spark_session(settings) as session:
        loop = _RefreshLoop(session, every, stop, report, archive)
        for view in views:
            loop.add(view)
        with cancelling(session, stop):
            loop.run()


class _RefreshLoop:
    """The streams and refreshes of all views of one process."""

    def __init__(self, session: Any, every: float, stop: threading.Event, report: Report, archive: str) -> None:
        self._session, self._every, self._stop, self._report = session, every, stop, report
        self._archive = archive
        self._cores, self._keep = cores_of("spark", None), max(_KEEP, every)
        options = RebuildOptions(keep=self._keep, cores=self._cores, pause_stream=False)
        self._work = Rebuilding(None, None, options, archive)
        self._work.use(session, lambda why: report("events passed over", {"why": why}))
        self._streams: list[QueryViewThread] = []
        self._views: list[TableView[Any, Any]] = []
        self._troubles, self._due = dict[str, Outage](), dict[str, float]()
        self._files, self._foreign = dict[str, object](), dict[str, str]()

    def add(self, view: View[Any, Any]) -> None:
        """Adds a view, as a stream if its SQL allows one, else with refreshes.

        Raises:
            ConfigurationError: its definition is wrong, or a reference file is unusable, which later is only reported.
        """
        from leftfold.spark.tables.columns import reference_table

        if not isinstance(view, TableView):
            raise ConfigurationError(f"view {view.name} is folded; run it with a projector")
        how = self._work.refreshed(view)
        for file in view.references.values():
            reference_table(file, f"view {view.name}")
        self._report("refreshing", {"view": view.name, "kept": str(how)})
        if how.incremental and isinstance(view, QueryView):
            thread = QueryViewThread(
                self._session, view, shuffles=2 * self._cores, keep=self._keep, archive=self._archive, stop=self._stop,
                report=self._report,
            )  # fmt: skip
            self._streams.append(thread)
        else:
            self._views.append(view)

    def run(self) -> None:
        """Runs until `stop` is set, or until a stream ends by an error, which is raised."""
        for stream in self._streams:
            stream.start()
        try:
            while not self._stop.wait(0.1):
                for error in (stream.error for stream in self._streams if stream.error is not None):
                    raise error
                self._hand_over()
                for view in self._views:
                    if time.monotonic() >= self._due.get(view.name, 0.0):
                        self._refresh(view)
        finally:
            self._stop.set()
            for stream in self._streams:
                stream.join()

    def _hand_over(self) -> None:
        """Moves views from streams that need the archive to refreshes."""
        for stream in [stream for stream in self._streams if stream.gap is not None]:
            self._streams.remove(stream)
            self._views.append(stream.view)
            self._report("batch and swap", {"view": stream.view.name, "every": f"{self._every:g} s", "why": _PAST})

    def _refresh(self, view: TableView[Any, Any]) -> None:
        """One refresh; errors of the log, the servers, the files or the rows are reported, and retried when it is due.

        No view waits for another one's files.
        """
        if self._stop.is_set():
            return
        self._due[view.name] = time.monotonic() + self._every
        trouble = self._troubles.setdefault(view.name, Outage(self._report, self._stop))
        try:
            self._compute(view)
            trouble.report_cause("")
        except (InfrastructureError, UnusableReference) as error:
            if not self._stop.is_set():
                pause = trouble.pause_for(error)
                self._due[view.name] = max(self._due[view.name], time.monotonic() + pause)
        except ConfigurationError:
            raise
        except LeftfoldError as error:
            self._report("failed", {"view": view.name, "why": str(error)})

    def _compute(self, view: TableView[Any, Any]) -> None:
        """Computes a view again if its events or its reference files have changed since the last refresh."""
        refuse_eviction(redis_settings())
        files = {name: file.fingerprint() for name, file in view.references.items()}
        with self._work.opened(view, lambda progress: None) as rebuild:
            if isinstance(rebuild, Refresh) and self._is_foreign(view, rebuild.foreign()):
                return
            plan = rebuild.plan()
            if isinstance(rebuild, Refresh) and self._files.get(view.name) == files and rebuild.stands_at(plan):
                return
            result = rebuild.run(plan)
        self._files[view.name] = files
        details = {"view": view.name, "generation": result.generation, "rows": result.rows, "events": result.events}
        self._report("refreshed", {**details, "seconds": round(sum(result.seconds.values()), 1)})
        if not result.swapped:
            self._report("view stopped", {"view": view.name, "why": str(result)})

    def _is_foreign(self, view: TableView[Any, Any], why: str) -> bool:
        """Whether the live generation was computed from other topics, as when the wrong cluster is configured."""
        if why and self._foreign.get(view.name) != why:
            self._report("view stopped", {"view": view.name, "why": why})
        self._foreign[view.name] = why
        return bool(why)


@contextmanager
def cancelling(session: Any, stop: threading.Event) -> Iterator[None]:
    """Cancels Spark's jobs when `stop` is set: an unfinished refresh leaves no rows behind.

    The block ends only after the cancellation: if Spark stopped during it, a Java stack trace would be printed.
    """

    def cancel() -> None:
        stop.wait()
        with suppress(Exception):  # Spark has ended, and its jobs with it
            session.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel, name="cancel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
