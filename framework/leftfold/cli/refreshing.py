"""The process of the views that Spark computes: by a stream where that is sound, else again every so often."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from leftfold.cli.query_streams import ViewStream
from leftfold.cli.rebuilding import Rebuilding, cores_of, spark_settings
from leftfold.cli.trouble import Trouble
from leftfold.connection import ring
from leftfold.engine.rebuild import RebuildOptions
from leftfold.engine.refresh import Refresh
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.logs import Report
from leftfold.query import QueryView, TableView
from leftfold.view import View

__all__ = ["refresh"]

_KEEP = 60.0
"""Seconds for which readers in the middle of a scan still find the rows that were replaced."""


def refresh(views: Sequence[View[Any, Any]], every: float, stop: threading.Event, report: Report) -> None:
    """Keeps views up to date until `stop` is set: streams, and all others computed again every so many seconds.

    Raises:
        ConfigurationError: the SQL of a view is not allowed or does not give its row; starting again would not help.
    """
    cores, keep = cores_of("spark", None), max(_KEEP, every)
    work = Rebuilding(None, None, RebuildOptions(keep=keep, cores=cores))
    settings = spark_settings(None)
    settings = settings.model_copy(update={"jars": (*settings.jars, *ring("leftfold.local").spark_jars())})
    with ring("leftfold.spark.session").spark_session(settings) as session:
        work.use(session)
        streams, again = list[ViewStream](), list[TableView[Any, Any]]()
        for view in map(_table, views):
            how = work.refreshed(view)
            report("refreshing", {"view": view.name, "kept": str(how)})
            if how.incremental and isinstance(view, QueryView):
                streams.append(ViewStream(session, view, shuffles=2 * cores, keep=keep, stop=stop, report=report))
            else:
                again.append(view)
        threading.Thread(target=_cancel, args=(session, stop), name="cancel", daemon=True).start()
        for stream in streams:
            stream.start()
        try:
            _keep_fresh(work, again, every, streams, stop, report)
        finally:
            stop.set()
            for stream in streams:
                stream.join()


def _keep_fresh(
    work: Rebuilding,
    views: Sequence[TableView[Any, Any]],
    every: float,
    streams: Sequence[ViewStream],
    stop: threading.Event,
    report: Report,
) -> None:
    trouble, seen = Trouble(report, stop), dict[str, object]()
    due = 0.0
    while not stop.wait(0.1):
        for stream in streams:
            if stream.error is not None:
                raise stream.error
        if time.monotonic() >= due:
            due = time.monotonic() + every
            for view in views:
                _refresh(work, view, seen, trouble, stop, report)


def _refresh(
    work: Rebuilding,
    view: TableView[Any, Any],
    seen: dict[str, object],
    trouble: Trouble,
    stop: threading.Event,
    report: Report,
) -> None:
    """One refresh, unless neither events nor reference files have changed since the last."""
    if stop.is_set():
        return
    try:
        files = {name: file.fingerprint() for name, file in view.references.items()}
        with work.opened(view, lambda progress: None) as rebuild:
            plan = rebuild.plan()
            if isinstance(rebuild, Refresh) and seen.get(view.name) == files and rebuild.stands_at(plan):
                return
            result = rebuild.run(plan)
        seen[view.name] = files
        trouble.told("")
        details = {"view": view.name, "generation": result.generation, "rows": result.rows, "events": result.events}
        report("refreshed", {**details, "seconds": round(sum(result.seconds.values()), 1)})
        if not result.swapped:
            report("view stopped", {"view": view.name, "why": str(result)})
    except ConfigurationError:
        raise
    except InfrastructureError as error:
        if not stop.is_set():
            trouble.met(error)
    except LeftfoldError as error:
        report("failed", {"view": view.name, "why": str(error)})


def _table(view: View[Any, Any]) -> TableView[Any, Any]:
    if not isinstance(view, TableView):
        raise ConfigurationError(f"view {view.name} is folded; run it with a tail")
    return view


def _cancel(session: Any, stop: threading.Event) -> None:
    """Ends what Spark is at when the process must end: a refresh under way leaves nothing behind."""
    stop.wait()
    session.sparkContext.cancelAllJobs()
